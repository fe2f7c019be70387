"""CUDA as a device of the backend: what can be told without a GPU. On one, see tests/gpu."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest
from routetune.tasks.engines.base import BuildOrder, Engine, default_device, open_backend
from routetune.tasks.engines.onnxruntime.knobs import check_route, knob_database
from routetune.tasks.engines.onnxruntime.passes import CPU_ONLY, CUDA_ONLY
from routetune.tasks.engines.onnxruntime.session import (
    PROVIDERS,
    applied_at_load,
    build_options,
    disabled_optimizers,
    open_session,
    provider_options,
)
from routetune.tasks.engines.onnxruntime.settings_cuda import every_setting, settings_on
from routetune.tasks.errors import BadInput

from tests.engines.small_models import mlp

HAS_CUDA = PROVIDERS["cuda"] in onnxruntime.get_available_providers()
without = pytest.mark.skipif(HAS_CUDA, reason="this onnxruntime has the CUDA provider")
ROUTE = {"-prefer_nhwc": "1", "-use_tf32": "1", "-ConvBNFusion": "off", "-enable_mem_pattern": "off"}


@without
def test_a_build_without_the_provider_is_refused_by_name(tmp_path: Path) -> None:
    backend = open_backend("onnxruntime")
    model, output = mlp().save(tmp_path), tmp_path / "engine"
    options = {"backend": "onnxruntime", "device": "cuda", "provider": PROVIDERS["cuda"], "knobs": {}}
    engine = Engine(model, "", 1, None, options)
    for use in (
        lambda: backend.knobs("cuda:0"),
        lambda: backend.versions("cuda:0"),
        lambda: backend.build(BuildOrder(model, {}, output, device="cuda:0")),
        lambda: backend.load(engine, "cuda:0", {}),
    ):
        with pytest.raises(BadInput, match=r"without CUDAExecutionProvider.*CPUExecutionProvider.*-gpu"):
            use()
    assert not output.exists()
    assert default_device("onnxruntime") == "cpu"


@without
def test_the_provider_is_asserted_once_there_is_a_session(tmp_path: Path) -> None:
    """The library itself warns, and computes on the CPU."""
    model = mlp().save(tmp_path)
    options = build_options({}, tmp_path / "engine", {})
    with pytest.raises(BadInput, match=r"took CPUExecutionProvider in place of CUDAExecutionProvider"):
        open_session(model, options, PROVIDERS["cuda"], provider_options=provider_options({}, "cuda:0"))


@pytest.mark.parametrize("device", ["cuda", "cuda:", "cuda:x", "cuda:-1", "abacus"])
def test_what_is_no_device_is_refused(device: str) -> None:
    with pytest.raises(BadInput, match=device):
        open_backend("onnxruntime").knobs(device)


def test_an_engine_is_for_one_kind_of_device(tmp_path: Path) -> None:
    backend = open_backend("onnxruntime")
    engine = backend.build(BuildOrder(mlp().save(tmp_path), {}, tmp_path / "engine"))
    with pytest.raises(BadInput, match="the engine is for device 'cpu', not for 'cuda'"):
        backend.load(engine, "cuda:0", {})


def test_the_cuda_knobs_are_the_provider_s_and_those_that_act_on_its_nodes() -> None:
    database = knob_database("cuda")
    assert all(knob.bounded and knob.default in (knob.values or ()) for knob in database.values())
    own = {name for name, row in every_setting().items() if row.place == "provider"}
    assert {f"-{name}" for name in own | set(CUDA_ONLY & {"BiasSoftmaxFusion"})} <= set(database)
    gone = {"intra_op_num_threads", "mlas.use_lut_gemm", "enable_cpu_mem_arena", *CPU_ONLY}
    assert not {f"-{name}" for name in gone} & set(database)
    assert not {f"-{name}" for name in (*own, *CUDA_ONLY)} & set(knob_database("cpu"))
    assert settings_on("cuda").items() <= every_setting().items()


@pytest.mark.parametrize(
    ("kind", "route", "message"),
    [
        ("cpu", {"-use_tf32": "0"}, "unknown knob '-use_tf32'"),
        ("cpu", {"-BiasSoftmaxFusion": "off"}, "unknown knob"),
        ("cuda", {"-intra_op_num_threads": "1"}, "unknown knob '-intra_op_num_threads'"),
        ("cuda", {"-NchwcTransformer": "off"}, "unknown knob"),
        ("cuda", {"-use_tf32": "off"}, "allowed: 0, 1"),
        ("cuda", {"-cudnn_conv_algo_search": "heuristic"}, "allowed: EXHAUSTIVE, HEURISTIC, DEFAULT"),
        ("cuda", {"-device_id": "1"}, "unknown knob '-device_id'"),
        ("cuda", {"-user_compute_stream": "0"}, "unknown knob"),
    ],
)
def test_a_route_of_another_device_is_refused(kind: str, route: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check_route(route, kind)


def test_a_route_is_split_between_graph_session_and_provider() -> None:
    check_route(ROUTE, "cuda")
    assert provider_options(ROUTE, "cuda:2", 4711) == {
        "device_id": "2",
        "user_compute_stream": "4711",
        "prefer_nhwc": "1",  # and not use_tf32, which is at its default
    }
    assert provider_options(ROUTE, "cpu") == {}
    assert disabled_optimizers(ROUTE) == {"ConvBNFusion"}
    at_load = applied_at_load(ROUTE)
    assert at_load == {"-enable_mem_pattern": "off", "-prefer_nhwc": "1"}
    assert provider_options(at_load, "cuda:0") == {"device_id": "0", "prefer_nhwc": "1"}
    assert not build_options(ROUTE, Path("engine"), {}).enable_mem_pattern


def test_the_page_on_gpus_lists_the_provider_s_options_with_their_values() -> None:
    page = (Path(__file__).parents[3] / "docs" / "gpu.md").read_text()
    listed = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and cells[0].startswith("`") and "=" not in cells[0]:
            listed |= {name.strip("` "): cells[1].split(", ") for name in cells[0].split(",")}
    rows = {name: row for name, row in every_setting().items() if row.place == "provider"}
    assert list(listed) == list(rows)
    for name, values in listed.items():
        assert (values[0], set(values)) == (rows[name].default, set(rows[name].values)), name
