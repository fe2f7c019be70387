"""The ONNX Runtime backend: what is true of it beyond the contract of every backend."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from routetune.tasks.engines.base import BuildError, BuildOrder, Engine, Runner
from routetune.tasks.engines.onnxruntime.backend import OnnxRuntime
from routetune.tasks.engines.onnxruntime.identity import identity
from routetune.tasks.engines.onnxruntime.knobs import knob_database
from routetune.tasks.engines.onnxruntime.rules import graph, node, ramp
from routetune.tasks.engines.onnxruntime.runner import SessionRunner
from routetune.tasks.engines.onnxruntime.session import (
    DENORMALS,
    build_options,
    disabled_optimizers,
    open_session,
    unpacked,
)
from routetune.tasks.errors import BadInput

from tests.engines.onnxruntime import patterns
from tests.engines.small_models import SAMPLES, cnn, mlp, tokens

BACKEND = OnnxRuntime()
COUNT = 4096


def build(model: Path, folder: Path, *, profiles: Any = (), settings: Any = None, **route: str) -> Engine:
    names = {f"-{name}": value for name, value in route.items()}
    return BACKEND.build(BuildOrder(model, names, folder / "engine", profiles, settings or {}))


def load(engine: Engine, settings: Mapping[str, Any] | None = None) -> Runner:
    return BACKEND.load(engine, "cpu", settings or {})


# -------------------------------------------------------- what is in the file, and what is applied at load


def test_options_hold_what_the_file_does_not(tmp_path: Path) -> None:
    model = mlp().save(tmp_path)
    route = {
        "graph_optimization_level": "basic",
        "MatMulAddFusion": "off",
        "session.enable_quant_qdq_cleanup": "1",
        "execution_mode": "parallel",
        "intra_op_num_threads": "1",
        "session.disable_prepacking": "1",
        "enable_mem_pattern": "on",
    }
    engine = build(model, tmp_path, **route)
    import onnxruntime

    assert engine.options == {
        "backend": "onnxruntime",
        "version": onnxruntime.__version__,
        "provider": "CPUExecutionProvider",
        "device": "cpu",
        "knobs": {
            "-execution_mode": "parallel",
            "-intra_op_num_threads": "1",
            "-session.disable_prepacking": "1",
        },
    }


def test_a_route_that_spells_a_default_is_the_default(tmp_path: Path) -> None:
    model = mlp().save(tmp_path)
    default = build(model, tmp_path)
    spelt = {knob.name[1:]: knob.default for knob in knob_database().values()}
    engine = build(model, tmp_path, **spelt)
    assert (engine.identity, engine.options) == (default.identity, default.options)


ROUTES: tuple[dict[str, str], ...] = (
    {},
    {"-graph_optimization_level": "disabled"},
    {"-graph_optimization_level": "extended", "-intra_op_num_threads": "1"},
    {"-session.disable_prepacking": "1", "-intra_op_num_threads": "1"},
    {"-mlas.nchwc_pointwise_conv_max_input_channel_batch": "16", "-execution_mode": "parallel"},
    {"-session.set_denormal_as_zero": "1", "-NchwcTransformer": "off", "-enable_mem_reuse": "off"},
)


@pytest.mark.parametrize(
    "route", ROUTES, ids=lambda route: " ".join(map("=".join, route.items())) or "default"
)
def test_the_loaded_engine_is_the_session_that_was_built(route: dict[str, str], tmp_path: Path) -> None:
    """Bit for bit, the session that wrote the engine and the one that loads it compute the same."""
    samples = [make() for make in SAMPLES]
    for sample in samples:
        model = sample.save(tmp_path)
        flush = route.get(DENORMALS) == "1"
        options = build_options(route, tmp_path / "unused", {})
        off = disabled_optimizers(route)
        session = open_session(model, options, "CPUExecutionProvider", disabled=off, flush=flush)
        built = SessionRunner(session, flush)
        loaded = load(BACKEND.build(BuildOrder(model, route, tmp_path / "engine")))
        for inputs in sample.inputs:
            one, other = built.infer(inputs), loaded.infer(inputs)
            assert list(one) == list(other)
            assert all(one[name].tobytes() == other[name].tobytes() for name in one), sample.name


def test_packing_weights_leaves_nothing_in_the_file(tmp_path: Path) -> None:
    """An engine is built without it; the file is the one that a build with it writes."""
    for name, make in patterns.PATTERNS.items():
        onnx.save(make(), tmp_path / "m.onnx")
        written = []
        for change in (unpacked, lambda options: options):
            options = change(build_options({}, tmp_path / "engine", {}))
            open_session(tmp_path / "m.onnx", options, "CPUExecutionProvider")
            written.append(identity(onnx.load(tmp_path / "engine"), {}))
        assert written[0] == written[1], name


def test_all_patterns_load_and_run_as_built(tmp_path: Path) -> None:
    for name, make in patterns.PATTERNS.items():
        model = make()
        onnx.save(model, tmp_path / "m.onnx")
        session = open_session(
            tmp_path / "m.onnx", build_options({}, tmp_path / "unused", {}), "CPUExecutionProvider"
        )
        built, loaded = SessionRunner(session), load(build(tmp_path / "m.onnx", tmp_path))
        inputs = {value.name: _some(value) for value in model.graph.input}
        one, other = built.infer(inputs), loaded.infer(inputs)
        assert all(one[key].tobytes() == other[key].tobytes() for key in one), name


def _some(value: Any) -> np.ndarray[Any, Any]:
    kind = value.type.tensor_type
    shape = [size.dim_value or 2 for size in kind.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
    if kind.elem_type in (TensorProto.INT64, TensorProto.BOOL):
        return np.ones(shape, dtype)
    return (np.random.default_rng(0).standard_normal(shape) * 3).astype(dtype)


@pytest.mark.parametrize("name", ["engine.ort", "engine", "engine.onnx", "an engine é士.bin"])
def test_the_name_of_the_file_means_nothing(name: str, tmp_path: Path) -> None:
    model = cnn().save(tmp_path)
    renamed = model.rename(tmp_path / name.replace("engine", "model"))
    engine = BACKEND.build(BuildOrder(renamed, {}, tmp_path / name))
    assert onnx.load(engine.path).graph.output[0].name == "y"
    assert load(engine).infer(cnn().inputs[0])["y"].shape == (2, 10)


# ------------------------------------------------------------------------------------- sidecars and sizes


def with_sidecar(folder: Path, *, attribute: bool = True) -> Path:
    """x + w, and twice w besides if c, with w and twice w (weight or attribute) in another file."""
    double = ramp(COUNT) * 2
    constant = [node("Constant -> k", value=numpy_helper.from_array(double, "k"))] if attribute else []
    weights = [] if attribute else [numpy_helper.from_array(double, "k")]
    result = [helper.make_tensor_value_info(name, 1, (COUNT,)) for name in "te"]
    branches = {
        "then_branch": helper.make_graph([*constant, node("Add s k -> t")], "then", [], result[:1], weights),
        "else_branch": helper.make_graph([node("Identity s -> e")], "else", [], result[1:]),
    }
    nodes = [node("Add x w -> s"), node("If c -> y", **branches)]
    model = graph(nodes, {"w": ramp(COUNT)}, x=(COUNT,), y=(COUNT,), others={"c": ("BOOL", ())})
    folder.mkdir(exist_ok=True)
    place = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save_model(model, folder / "m.onnx", convert_attribute=attribute, **place)
    return folder / "m.onnx"


@pytest.fixture
def sidecar(tmp_path: Path) -> Path:
    return with_sidecar(tmp_path / "mod èle 士")


def _answers(runner: Runner) -> bool:
    x = np.arange(COUNT, dtype=np.float32)
    expected = {True: x + ramp(COUNT) + ramp(COUNT) * 2, False: x + ramp(COUNT)}
    return all(
        np.array_equal(runner.infer({"x": x, "c": np.array(flag)})["y"], expected[flag]) for flag in expected
    )


@pytest.mark.parametrize("attribute", [True, False], ids=["attribute", "weight"])
@pytest.mark.parametrize("level", ["disabled", "all"])
def test_an_engine_holds_what_the_sidecars_hold(level: str, attribute: bool, tmp_path: Path) -> None:
    model = with_sidecar(tmp_path / "mod èle 士", attribute=attribute)
    engine = build(model, tmp_path, graph_optimization_level=level)
    assert engine.size > 2 * COUNT * 4
    shutil.rmtree(model.parent)
    assert _answers(load(engine))


def test_a_model_is_opened_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a relative path, and as links to files elsewhere: the sidecar is beside the link."""
    source = tmp_path / "model"
    source.mkdir()
    model = graph([node("Add x w -> y")], {"w": ramp(COUNT)}, x=(COUNT,), y=(COUNT,))
    place = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save_model(model, source / "m.onnx", **place)
    expected = build(source / "m.onnx", tmp_path)
    monkeypatch.chdir(source)
    assert build(Path("m.onnx"), tmp_path).identity == expected.identity
    for folder in ("blobs", "links"):
        (tmp_path / folder).mkdir()
    for name, blob in (("m.onnx", "1f"), ("w.bin", "2e")):
        (source / name).rename(tmp_path / "blobs" / blob)
        (tmp_path / "links" / name).symlink_to(tmp_path / "blobs" / blob)
    monkeypatch.chdir("/")
    linked = build(tmp_path / "links" / "m.onnx", tmp_path)
    assert linked.identity == expected.identity
    x = np.arange(COUNT, dtype=np.float32)
    assert np.array_equal(load(linked).infer({"x": x})["y"], x + ramp(COUNT))


def test_a_link_that_the_library_does_not_follow_is_named(sidecar: Path, tmp_path: Path) -> None:
    sidecar.with_name("w.bin").rename(tmp_path / "data")
    sidecar.with_name("w.bin").symlink_to(tmp_path / "data")
    with pytest.raises(BuildError, match=r"w\.bin, but it is a symbolic link"):
        build(sidecar, tmp_path)


def test_another_sidecar_is_another_engine(sidecar: Path, tmp_path: Path) -> None:
    before = build(sidecar, tmp_path)
    data = sidecar.with_name("w.bin")
    data.write_bytes(data.read_bytes()[:-4] + b"\0\0\0\0")
    after = build(sidecar, tmp_path)
    assert before.identity != after.identity and before.digest != after.digest


def test_a_sidecar_that_is_cut_short_is_the_library_s_to_refuse(sidecar: Path, tmp_path: Path) -> None:
    os.truncate(sidecar.with_name("w.bin"), 100)
    with pytest.raises(BuildError, match=r"w\.bin|out of bounds|external"):
        build(sidecar, tmp_path)
    assert not (tmp_path / "engine").exists()


def test_weights_beyond_one_file_are_refused_in_a_sentence(tmp_path: Path) -> None:
    """2.2 GB of holes in a sidecar, which nothing needs to read."""
    size = 2200 << 20
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(size)
    weight = onnx.TensorProto(name="w", data_type=1, dims=[size // 4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "w.bin"), ("length", str(size))):
        weight.external_data.add(key=key, value=value)
    model = graph([node("Gather w x -> y")], x=(1,), y=(1,), x_type="INT64")
    model.graph.initializer.append(weight)
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(
        BuildError, match=r"would take 23\d{8} bytes, and one ONNX file holds at most 2147483647"
    ):
        build(tmp_path / "m.onnx", tmp_path)
    assert not (tmp_path / "engine").exists()


# --------------------------------------------------------------------------------------- fixed dimensions


def test_fixed_dimensions_come_from_the_first_profile(tmp_path: Path) -> None:
    sample = tokens()
    profiles = (sample.profile, {name: {"opt": [3, 5]} for name in sample.profile})
    engine = build(sample.save(tmp_path), tmp_path, profiles=profiles, free_dimension_override="on")
    shapes = {
        value.name: [size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in onnx.load(engine.path).graph.input
    }
    assert shapes == {"x": [2, 8], "mask": [2, 8]}
    runner = load(engine)
    assert runner.infer(sample.inputs[0])["y"].shape == (2, 4)
    with pytest.raises(Exception, match="invalid dimensions"):
        runner.infer(sample.inputs[1])


def test_one_dimension_cannot_be_fixed_to_two_sizes(tmp_path: Path) -> None:
    sample = tokens()
    profile = {"x": {"opt": [2, 8]}, "mask": {"opt": [2, 9]}}
    with pytest.raises(BuildError, match=r"'t' cannot be fixed.* 8 and, for input 'mask', 9"):
        build(sample.save(tmp_path), tmp_path, profiles=(profile,), free_dimension_override="on")


def test_fixing_dimensions_where_there_are_none_is_the_default(tmp_path: Path) -> None:
    model = cnn().save(tmp_path)
    assert build(model, tmp_path, free_dimension_override="on").identity == build(model, tmp_path).identity


# ------------------------------------------------------------------------------------------------ plugins

PLUGIN = """
#include <stdio.h>
typedef struct { const void* (*api)(unsigned); const char* (*version)(void); } Base;
void* RegisterCustomOps(void* options, const Base* base) {
    FILE* file = fopen("%s", "a");
    fputs(base->version(), file);
    fputs("\\n", file);
    fclose(file);
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_plugins_are_registered_at_build_and_at_load(tmp_path: Path) -> None:
    import onnxruntime

    record, library = tmp_path / "record", tmp_path / "plug in.so"
    (tmp_path / "plugin.c").write_text(PLUGIN % record)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "plugin.c"], check=True)
    settings = {"plugins": [str(library)]}
    engine = build(mlp().save(tmp_path), tmp_path, settings=settings)
    assert record.read_text().split() == [onnxruntime.__version__]
    load(engine, settings).close()
    assert record.read_text().split() == [onnxruntime.__version__] * 2


def test_a_plugin_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("not a library")
    for name in ("text.so", "none.so"):
        settings = {"plugins": [str(tmp_path / name)]}
        with pytest.raises(BadInput, match=f"plugin .*{name} is not a custom-op library"):
            build(mlp().save(tmp_path), tmp_path, settings=settings)


# -------------------------------------------------------------------------------- the library's surprises


def test_a_failure_is_not_tried_again_with_other_options(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    onnx.save(graph([node("acme:Nothing x -> y")], opsets={"acme": 1}), tmp_path / "m.onnx")
    with pytest.raises(BuildError, match="acme"):
        build(tmp_path / "m.onnx", tmp_path)
    assert "retrying" not in capfd.readouterr().out


def test_disabled_optimizers_add_up(tmp_path: Path) -> None:
    """The argument and the config entry of the same purpose do not merge, so one of them holds all names."""
    sample = cnn()
    operators = {}
    for off in ((), ("ConvBNFusion",), ("NchwcTransformer",), ("ConvBNFusion", "NchwcTransformer")):
        engine = build(sample.save(tmp_path), tmp_path, **dict.fromkeys(off, "off"))
        operators[off] = [entry.op_type for entry in onnx.load(engine.path).graph.node]
    assert len(set(map(tuple, operators.values()))) == 4
    assert "ReorderOutput" not in operators["ConvBNFusion", "NchwcTransformer"]
    assert "BatchNormalization" in operators["ConvBNFusion", "NchwcTransformer"]


def test_the_library_is_found_from_any_folder() -> None:
    """Our module is called onnxruntime as well: from its own folder, too, the name is the library's."""
    import routetune.tasks.engines as room

    folder = Path(str(room.__file__)).parent
    script = (
        "from routetune.tasks.engines.onnxruntime.backend import OnnxRuntime as backend;"
        "print(len(backend().knobs('cpu')), backend().versions('cpu'))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], cwd=folder, capture_output=True, text=True, check=True
    )
    assert int(done.stdout.split()[0]) >= 60


def test_nothing_heavy_comes_with_the_backend() -> None:
    script = (
        "import sys, routetune.tasks.engines.onnxruntime, routetune.tasks.engines.onnxruntime.knobs as k;"
        "k.knob_database();"
        "print([m for m in ('onnx', 'onnxruntime', 'polygraphy', 'prefect', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("room", [0.3, 0.6, 0.9])
def test_a_full_disk_is_no_fault_of_the_route(tmp_path: Path, room: float) -> None:
    """The library says "Protobuf serialization failed", or nothing, and the route would have the blame."""
    if os.getuid() != 0:
        pytest.skip("mounting takes root")
    model = cnn().model
    model.graph.initializer.append(numpy_helper.from_array(np.ones(1 << 18, np.float32), "unused"))
    model.graph.node.append(helper.make_node("Identity", ["unused"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [1 << 18]))
    onnx.save(model, tmp_path / "m.onnx")
    disk = tmp_path / "disk"
    disk.mkdir()
    size = int((tmp_path / "m.onnx").stat().st_size * room)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr}")
    try:
        with pytest.raises(OSError, match="no room for an engine") as full:
            build(tmp_path / "m.onnx", disk)
        assert full.value.errno == errno.ENOSPC and not list(disk.iterdir())
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
