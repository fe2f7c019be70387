"""The backend on the vendor's real parser and builder, those of TensorRT-RTX, which need no GPU to build."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper
from routetune.tasks.engines.onnxruntime.rules import graph, node
from routetune.tasks.engines.worker import StepFailed, Worker
from routetune.tasks.trial import Outcome

from conftest import Command, answer_of
from tests.engines.small_models import SAMPLES, Sample, mlp
from tests.engines.tensorrt.conftest import Build
from tests.machine import Machine

pytestmark = pytest.mark.tensorrt_rtx

Script = Callable[[str], Any]


def profile(*sizes: int) -> dict[str, dict[str, list[int]]]:
    return {"x": dict(zip(("min", "opt", "max"), ([size, 16] for size in sizes), strict=True))}


@pytest.fixture
def refused(build: Build) -> Callable[..., str]:
    """The message of a build that TensorRT or we refuse, and the class of the error."""

    def call(*arguments: Any, **settings: Any) -> str:
        with pytest.raises(StepFailed) as failed:
            build(*arguments, **settings)
        assert failed.value.outcome is Outcome.FAILED
        return f"{failed.value.error}: {failed.value.reason}"

    return call


@pytest.mark.parametrize("make", SAMPLES)
def test_a_model_becomes_a_file_and_what_is_known_of_it(
    make: Callable[[], Sample], build: Build, tmp_path: Path
) -> None:
    sample = make()
    engine = build(sample.save(tmp_path), [sample.profile] if sample.profile else [])
    content = (tmp_path / "engine").read_bytes()
    assert engine["digest"] == hashlib.sha256(content).hexdigest()
    assert engine["size"] == len(content) > 10_000
    assert engine["options"] == {
        "backend": "tensorrt",
        "version": "1.7.1.116",
        "flavour": "RTX",
        "device": "cuda",
        "version_compatible": False,
    }
    assert engine["identity"] is None  # there is no GPU to load it on and look


def test_every_error_of_the_parser_is_shown(refused: Callable[..., str], tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="fine"),
        helper.make_node("Foo", ["a"], ["b"], name="first", domain="my.ops"),
        helper.make_node("Bar", ["a"], ["c"], name="second", domain="my.ops"),
    ]
    values = [helper.make_tensor_value_info(name, 1, [4]) for name in "xbc"]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.ops", 1)]
    bad = helper.make_model(
        helper.make_graph(nodes, "g", values[:1], values[1:]), opset_imports=opsets, ir_version=9
    )
    onnx.save(bad, tmp_path / "bad.onnx")
    message = refused(tmp_path / "bad.onnx")
    assert message.startswith("BuildError: TensorRT cannot parse model bad.onnx")
    for name, operator in (("first", "Foo"), ("second", "Bar")):
        assert f"({operator} {name})" in message
    assert message.count("Plugin not found") == 2
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize(
    "content", [b"this is no model", b"", mlp().model.SerializeToString()[:-100]], ids=len
)
def test_what_is_no_model_is_refused(content: bytes, refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(content)
    (tmp_path / "engine").write_bytes(b"an engine of before")
    assert refused(tmp_path / "bad.onnx").startswith("BuildError: ")
    assert not (tmp_path / "engine").exists()


def test_a_model_with_sidecars(build: Build, tmp_path: Path) -> None:
    path = tmp_path / "mod èle" / "split.onnx"
    path.parent.mkdir()
    onnx.save_model(mlp().model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert build(path, [mlp().profile])["size"] > 10_000


def test_dynamic_shapes_need_a_profile(build: Build, refused: Callable[..., str], tmp_path: Path) -> None:
    path = mlp().save(tmp_path)
    assert "no optimization profile has been defined" in refused(path)
    assert "input 'x' is of dynamic shape: give its min, opt and max under [shapes]" in refused(path, [{}])
    assert "optimization profile" in refused(path, [profile(8, 4, 1)]).lower()
    one, two = build(path, [profile(1, 4, 8)]), build(path, [profile(1, 4, 8), profile(8, 64, 128)])
    assert "Optimization Profiles  | 2 profile(s)" in (tmp_path / "step.log").read_text()
    assert two["digest"] != one["digest"]


def test_names_that_hold_marks_of_patterns(build: Build, tmp_path: Path) -> None:
    sample = mlp()
    sample.model.graph.input[0].name = sample.model.graph.node[0].input[0] = "x[0]*"
    assert build(sample.save(tmp_path), [{"x[0]*": profile(1, 4, 8)["x"]}])["size"] > 10_000


def test_inputs_that_shapes_depend_on_need_values(
    build: Build, refused: Callable[..., str], tmp_path: Path
) -> None:
    model = graph([node("Expand x s -> y")], x=(1, 1), y=("a", "b"), others={"s": ("INT64", (2,))})
    onnx.save(model, path := tmp_path / "expand.onnx")
    fixed = {"x": {end: [1, 1] for end in ("min", "opt", "max")}}
    assert "input 's' is an input that shapes depend on" in refused(path, [fixed])
    assert "profile" in refused(
        path, [fixed], shape_values={"s": {"min": [9, 9], "opt": [4, 6], "max": [1, 1]}}
    )
    values = {"s": {"min": [1, 2], "opt": [4, 6], "max": [8, 8]}}
    assert build(path, [fixed], shape_values=values)["size"] > 1000


def test_every_builder_setting_can_be_set_and_read_back(in_rtx: Script) -> None:
    found = in_rtx(
        """
        import json
        from routetune.tasks.engines.tensorrt.knobs import *
        from routetune.tasks.engines.tensorrt.knobs import _members, _settings
        from routetune.tasks.errors import BadInput
        builder, wrong, tried = new_builder(), [], 0
        for name, knob in knob_database().items():
            for value in (*(knob.values or ("7", "auto")), knob.default):
                config = builder.create_builder_config()
                apply_settings(config, {name: value})
                now = {one.name: one.default for one in (*_settings(config), *_members(config))}
                expected = {other: one.default for other, one in knob_database().items()} | {name: value}
                tried += 1
                wrong += [(name, value, now)] if now != expected else []
        try:
            apply_settings(config, {"+max_num_tactics": "many"})
            refusal = ""
        except BadInput as error:
            refusal = str(error)
        knobs = list(knob_database())
        print(json.dumps({"wrong": wrong, "tried": tried, "knobs": knobs, "refusal": refusal}))
        """
    )
    assert found["wrong"] == []
    assert found["tried"] > 40
    assert {"+tf32", "+max_aux_streams", "+l2_limit_for_tiling", "+tactic_source:jit_convolutions"} <= {
        *found["knobs"]
    }
    assert "must be a whole number or auto, found 'many'" in found["refusal"]


def test_builder_settings_shape_the_engine(build: Build, refused: Callable[..., str], tmp_path: Path) -> None:
    path = mlp().save(tmp_path)
    route = {
        "+tf32": "off",
        "+builder_optimization_level": "5",
        "+preview:runtime_activation_resize_10_10": "off",
    }
    build(path, [profile(1, 4, 8)], route, memory_pools={"workspace": 64})
    said = (tmp_path / "step.log").read_text()
    assert "WORKSPACE: 64.00 MiB" in said
    assert "TF32" not in said.partition("Flags")[2].partition("\n")[0]
    assert "Preview Features" not in said
    message = refused(path, [profile(1, 4, 8)], memory_pools={"attic": 1})
    assert "'attic' is not one of workspace" in message
    assert "does not allow '9'" in refused(path, [profile(1, 4, 8)], {"+builder_optimization_level": "9"})


def test_a_refused_route_is_silent_in_tensorrt_and_an_error_of_ours(in_rtx: Script) -> None:
    found = in_rtx(
        """
        import json
        from routetune.tasks.engines.base import BuildError
        from routetune.tasks.engines.tensorrt.build import _set_route
        from routetune.tasks.engines.tensorrt.knobs import new_builder
        config = new_builder().create_builder_config()
        config.build_route = "-copy_ppg=off"
        kept = config.build_route
        try:
            _set_route(config, "-copy_ppg=off")
            refusal = ""
        except BuildError as error:
            refusal = str(error)
        print(json.dumps({"kept": kept, "database": config.all_build_routes, "refusal": refusal}))
        """
    )
    assert found["kept"] == found["database"] == ""
    assert "'-copy_ppg=off' cannot be set: this TensorRT has no global performance tuner" in found["refusal"]


def test_an_empty_database_says_what_still_works(routetune: Command, rtx: dict[str, str]) -> None:
    listed = answer_of(routetune("knobs", "--backend", "tensorrt", "--json", **rtx))
    assert listed["tuner_options"]
    assert all(option["option"].startswith("+") for option in listed["tuner_options"])
    [note] = listed["notes"]
    assert "no global performance tuner" in note and "builder settings (+name)" in note
    refused = routetune("expand", "--backend", "tensorrt", "--", "-copy_ppg=[on|off]", **rtx)
    assert refused.returncode == 2
    assert note in refused.stderr
    expanded = answer_of(routetune("expand", "+tf32=[*]", "--backend", "tensorrt", "--json", **rtx))
    assert expanded["size"] == 2


def test_tensorrt_missing_but_rtx_there_is_said(routetune: Command, rtx: dict[str, str]) -> None:
    refused = routetune("knobs", "--backend", "tensorrt", **rtx | {"POLYGRAPHY_USE_TENSORRT_RTX": "0"})
    assert refused.returncode == 2
    assert "POLYGRAPHY_USE_TENSORRT_RTX=1" in refused.stderr


def test_tensorrt_s_log_is_the_step_s_log(build: Build, refused: Callable[..., str], tmp_path: Path) -> None:
    path = mlp().save(tmp_path)
    build(path, [profile(1, 4, 8)])
    said = (tmp_path / "step.log").read_text()
    assert "[INFO] Engine generation completed" in said
    assert "Building engine (6 steps)" in said
    refused(path)
    assert "[ERROR] IBuilder::buildSerializedNetwork" in (tmp_path / "step.log").read_text()


def test_a_build_ends_by_itself_when_its_time_is_over(build: Build, worker: Worker, tmp_path: Path) -> None:
    path = mlp().save(tmp_path)
    with pytest.raises(StepFailed, match="stopped after its 0 s") as failed:
        build(path, [profile(1, 4, 8)], stop_after=0.0)
    assert failed.value.outcome is Outcome.TIMED_OUT
    assert build(path, [profile(1, 4, 8)])["size"] > 0
    assert worker.started == 1


@pytest.fixture
def plugin(tmp_path: Path) -> Callable[[str], str]:
    """A plugin library whose C statement runs when it is loaded."""

    def compiled(statement: str) -> str:
        compiler = shutil.which("gcc")
        if compiler is None:
            pytest.skip("gcc is not installed; it makes the faulty plugin")
        source, library = tmp_path / "plugin.c", tmp_path / "plugin.so"
        source.write_text(
            f"#include <unistd.h>\n__attribute__((constructor)) static void f(void) {{ {statement} }}\n"
        )
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
        return str(library)

    return compiled


@pytest.mark.parametrize(
    ("statement", "outcome", "reason"),
    [
        ("*(volatile int *)0 = 1;", Outcome.CRASHED, "SIGSEGV"),
        ("for (;;) sleep(600);", Outcome.TIMED_OUT, "did not end within 2 s"),
    ],
)
def test_a_fault_in_native_code_is_that_build_s_alone(
    build: Build,
    worker: Worker,
    tmp_path: Path,
    plugin: Callable[[str], str],
    statement: str,
    outcome: Outcome,
    reason: str,
) -> None:
    path = mlp().save(tmp_path)
    build(path, [profile(1, 4, 8)])
    with pytest.raises(StepFailed, match=reason) as failed:
        build(path, [profile(1, 4, 8)], seconds=2.0, plugins=[plugin(statement)])
    assert failed.value.outcome is outcome
    assert build(path, [profile(1, 4, 8)])["size"] > 0
    assert worker.started == 2


def test_a_library_that_is_none_is_named(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "plugin.so").write_bytes(b"no library")
    message = refused(mlp().save(tmp_path), [profile(1, 4, 8)], plugins=[str(tmp_path / "plugin.so")])
    assert "BadInput: a plugin library cannot be loaded" in message and "plugin.so" in message


def test_a_timing_cache_is_kept_and_a_bad_one_set_aside(in_rtx: Script, tmp_path: Path) -> None:
    """With the library's real caches: TensorRT-RTX takes back none without a GPU to check it on."""
    found = in_rtx(
        """
        import json, warnings
        from pathlib import Path
        from routetune.tasks.engines.tensorrt import timing_cache
        from routetune.tasks.engines.tensorrt.knobs import new_builder
        path, config = Path("caches/key.cache"), new_builder().create_builder_config()
        warnings.simplefilter("always")

        def attach():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                timing_cache.attach(config, path)
            return [str(one.message) for one in caught if one.category is UserWarning]

        said = [attach()]
        timing_cache.keep(config, path)
        content = path.read_bytes()
        said.append(attach())
        aside = path.with_name("key.cache.set-aside")
        whole = aside.read_bytes() == content
        path.write_bytes(content[:-1])
        said.append(attach())
        timing_cache.keep(config, path)
        left = sorted(one.name for one in path.parent.iterdir())
        print(json.dumps({"said": said, "whole": whole, "left": left}))
        """
    )
    none, foreign, damaged = found["said"]
    assert none == []
    assert "of another GPU or version" in foreign[0] and "set aside as key.cache.set-aside" in foreign[0]
    assert "it is damaged" in damaged[0]
    assert found["whole"]
    assert found["left"] == ["key.cache", "key.cache.set-aside"]


TARGET = """
schema = 1
name = "mlp"
model = "mlp.onnx"
backend = "tensorrt"
[shapes]
x = { min = "1x16", opt = "4x16", max = "8x16" }
[search]
routes = "+tf32=[*]"
[engine]
compute_capabilities = "8.9"
memory_pools = { workspace = 64 }
"""


def test_builds_are_kept_in_the_store(in_rtx: Script, tmp_path: Path) -> None:
    mlp().save(tmp_path)
    (tmp_path / "mlp.toml").write_text(TARGET)
    Machine(tmp_path / "machine")  # a run is bound to a GPU that can be read; the builds need none
    found = in_rtx(
        """
        import json, os, sys
        from pathlib import Path
        sys.path.insert(0, "machine")
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        from routetune.tasks.bench import open_bench
        from routetune.tasks.build import build
        from routetune.tasks.store import open_store
        from routetune.tasks.subject import open_subject
        subject, store = open_subject("mlp.toml"), open_store("store")
        trials = []
        for values in (("on", "off", "off"), ("off",)):  # two runs
            with open_bench(Path("mlp.toml"), store) as bench:
                trials += [build(bench, bench.database.route({"+tf32": value})) for value in values]
        print(json.dumps({
            "cached": [trial.cached for trial in trials],
            "built": ["build" in trial.seconds for trial in trials],
            "failures": [str(trial.failure) for trial in trials if trial.failure],
            "whole": [store.blobs.verified(trial.engine["digest"]).stat().st_size for trial in trials],
            "sizes": [trial.engine["size"] for trial in trials],
            "settings": subject.bound_to["target"]["engine"],
        }))
        """
    )
    assert found["failures"] == []
    assert found["cached"] == [[], [], [], ["build"]]
    assert found["built"] == [True, True, False, True]
    assert found["whole"] == found["sizes"]
    assert found["settings"] == {
        "plugins": [],
        "memory_pools": {"workspace": 64.0},
        "compute_capabilities": ["8.9"],
    }


def test_an_engine_cannot_be_loaded_without_a_gpu_and_says_so(in_rtx: Script, tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU")
    found = in_rtx(
        """
        import json
        from routetune.tasks.engines.base import Engine, open_backend
        from routetune.tasks.errors import BadInput
        from pathlib import Path
        answers = []
        from routetune.tasks.engines.tensorrt.runner import deserialized
        try:
            deserialized(b"no engine", host_code=True)
        except RuntimeError as error:
            answers.append(str(error))
        for device, version in (("cuda:0", "1.7.1.116"), ("cpu", "1.7.1.116"), ("cuda:0", "1.6.0.0")):
            options = {"backend": "tensorrt", "version": version, "flavour": "RTX", "device": "cuda"}
            try:
                open_backend("tensorrt").load(Engine(Path("none"), "", 0, None, options), device, {})
            except BadInput as error:
                answers.append(str(error))
        print(json.dumps(answers))
        """
    )
    assert found[0].startswith("TensorRT cannot load the engine: [runtime.cpp::readHeader")
    assert "device 'cuda:0' cannot be used: CUDA says" in found[1]
    assert found[2:] == [
        "the engine is for device 'cuda', not for 'cpu': tune again",
        "the engine is for version '1.6.0.0', not for '1.7.1.116': tune again",
    ]
