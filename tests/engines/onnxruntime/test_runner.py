"""The runner: every element type, outputs in memory of their own, sentinels, closing."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from routetune.tasks.engines.base import BuildOrder
from routetune.tasks.engines.onnxruntime.backend import OnnxRuntime
from routetune.tasks.engines.onnxruntime.denormals import flushing
from routetune.tasks.engines.onnxruntime.rules import graph, node, scalar
from routetune.tasks.engines.onnxruntime.runner import Closed, SessionRunner
from routetune.tasks.engines.onnxruntime.tensors import _TYPES, Element, Unwritten, element_of
from routetune.tasks.errors import BadInput

from tests.engines.onnxruntime.patterns import denormal

BACKEND = OnnxRuntime()
Open = Callable[..., SessionRunner]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Open]:
    opened: list[SessionRunner] = []

    def call(model: ModelProto, **route: str) -> SessionRunner:
        onnx.save(model, tmp_path / "m.onnx")
        names = {f"-{name}": value for name, value in route.items()}
        engine = BACKEND.build(BuildOrder(tmp_path / "m.onnx", names, tmp_path / "engine"))
        runner = BACKEND.load(engine, "cpu", {})
        assert isinstance(runner, SessionRunner)
        opened.append(runner)
        return runner

    yield call
    for runner in opened:
        runner.close()


def typed(op: str, source: int, target: int, shape: tuple[Any, ...], **attributes: Any) -> ModelProto:
    x, y = (
        helper.make_tensor_value_info("x", source, shape),
        helper.make_tensor_value_info("y", target, shape),
    )
    model = helper.make_graph([helper.make_node(op, ["x"], ["y"], **attributes)], "g", [x], [y])
    return helper.make_model(model, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def values(dtype: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return (np.arange(np.prod(shape, dtype=int)) % 8).reshape(shape).astype(dtype)


WHOLE = [kind for kind in _TYPES if kind not in ("int4", "uint4")]


@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4), ("n", "m")], ids=str)
@pytest.mark.parametrize("kind", WHOLE)
def test_every_type_passes_unchanged(kind: str, shape: tuple[Any, ...], load: Open) -> None:
    number, dtype = _TYPES[kind]
    runner = load(typed("Identity", number, number, shape))
    given = values(dtype, tuple(5 if isinstance(size, str) else size for size in shape))
    for _ in range(2):
        got = runner.infer({"x": given})["y"]
        assert got.dtype == np.dtype(dtype)
        assert got.shape == given.shape
        assert got.tobytes() == given.tobytes()
        assert not np.shares_memory(got, given)


@pytest.mark.parametrize("kind", ["int4", "uint4"])
@pytest.mark.parametrize("shape", [(2, 3), (4,), (1, 0)], ids=str)
def test_types_of_four_bits(kind: str, shape: tuple[int, ...], load: Open) -> None:
    number, dtype = _TYPES[kind]
    given = (values(np.int8, shape) - (4 if kind == "int4" else 0)).astype(dtype)
    widened = load(typed("Cast", number, 1, shape, to=1)).infer({"x": given})["y"]
    assert np.array_equal(widened, given.astype(np.float32))
    narrow = load(typed("Cast", 1, number, shape, to=number)).infer({"x": given.astype(np.float32)})["y"]
    assert narrow.dtype == np.dtype(dtype)
    assert narrow.tobytes() == given.tobytes()


@pytest.mark.parametrize("kind", _TYPES)
def test_a_value_that_nobody_wrote_can_be_told(kind: str) -> None:
    element = element_of("y", f"tensor({kind})")
    if kind == "bool":  # no third value could show it, but the byte is neither of the two
        with pytest.raises(Unwritten, match="15 of 15"):
            element.unpacked(element.sentinel((3, 5)), (3, 5))
        return
    buffer = element.unpacked(element.sentinel((3, 5)), (3, 5))
    assert buffer.shape == (3, 5) and buffer.dtype == element.dtype
    if np.issubdtype(element.dtype, np.floating) or "float" in kind:
        assert np.isnan(buffer.astype(np.float64)).all()
    elif not element.halves:
        assert set(buffer.tobytes()) == {0xA5}
    assert Element.__doc__


class Idle:
    """A session whose kernels do nothing from some run on: what it should have written stays as it was."""

    def __init__(self, session: Any, works: int) -> None:
        self._session, self._left = session, works

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run_with_iobinding(self, binding: Any) -> None:
        self._left -= 1
        if self._left >= 0:
            self._session.run_with_iobinding(binding)


@pytest.mark.parametrize("shape", [(64, 64), ("n", "m")], ids=str)
@pytest.mark.parametrize("kind", WHOLE)
def test_a_skipped_write_cannot_inherit_a_right_answer(
    kind: str, shape: tuple[Any, ...], tmp_path: Path
) -> None:
    """The buffers of the right answer are freed first, so that the memory is likely to be used again."""
    import onnxruntime

    number, dtype = _TYPES[kind]
    onnx.save(typed("Identity", number, number, shape), tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    runner = SessionRunner(Idle(session, works=2))
    given = {"x": values(dtype, (64, 64))}
    right = runner.infer(given)["y"].tobytes()
    assert right == given["x"].tobytes()
    if "n" not in shape:
        runner.infer(given)
    for _ in range(3):
        if kind == "bool":
            with pytest.raises(Unwritten):
                runner.infer(given)
        else:
            found = runner.infer(given)["y"]
            assert not np.any(found == given["x"]) or "int" in kind
            assert found.tobytes() != right


@pytest.mark.parametrize(
    ("kind", "type_proto"),
    [
        ("tensor(string)", helper.make_tensor_type_proto(TensorProto.STRING, [2])),
        ("seq(tensor(float))", helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [2]))),
    ],
)
def test_what_no_array_can_hold_is_named(kind: str, type_proto: Any, load: Open) -> None:
    x, y = helper.make_value_info("x", type_proto), helper.make_value_info("y", type_proto)
    model = helper.make_model(
        helper.make_graph([node("Identity x -> y")], "g", [x], [y]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    with pytest.raises(BadInput, match=r"'x' is .*must be tensors of one of") as refused:
        load(model)
    assert kind in str(refused.value)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "input 'x' is missing"),
        ({"x": np.ones(4, np.float32), "z": np.ones(1)}, "no input 'z'; it has x"),
        ({"x": np.ones(4)}, "input 'x' must be float32, found float64"),
        ({"x": np.ones(4, ">f4")}, "must be float32, found >f4"),
    ],
)
def test_wrong_inputs_are_refused(inputs: dict[str, Any], message: str, load: Open) -> None:
    runner = load(graph([node("Relu x -> y")]))
    with pytest.raises(BadInput, match=message):
        runner.infer(inputs)
    with pytest.raises(BadInput, match=message):
        runner.prepare(inputs)


def test_a_wrong_shape_is_the_library_s_to_refuse(load: Open) -> None:
    runner = load(graph([node("Relu x -> y")]))
    with pytest.raises(Exception, match="invalid dimensions for input: x"):
        runner.infer({"x": np.ones(5, np.float32)})
    assert runner.infer({"x": np.ones(4, np.float32)})["y"].tolist() == [1, 1, 1, 1]


def test_arrays_that_are_not_contiguous(load: Open) -> None:
    given = np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::3].T
    assert not given.flags.c_contiguous
    got = load(graph([node("Neg x -> y")], x=(2, 2), y=(2, 2))).infer({"x": given})["y"]
    assert np.array_equal(got, -given)


def test_shapes_that_follow_from_values(load: Open) -> None:
    runner = load(graph([node("NonZero x -> y")], y=(1, "k"), y_type="INT64"))
    for given in ([1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 2]):
        call = runner.prepare({"x": np.array(given, np.float32)})
        call()
        assert runner.infer({"x": np.array(given, np.float32)})["y"].tolist() == [
            np.flatnonzero(given).tolist()
        ]


def test_a_shape_that_the_model_declares_wrongly(load: Open) -> None:
    nodes = [node("Reshape x to -> y")]
    model = graph(nodes, x=("n",), y=(2, 2), others={"to": ("INT64", (2,))})
    runner = load(model)
    inputs = {"x": np.arange(6, dtype=np.float32), "to": np.array([3, 2])}
    for _ in range(2):
        assert runner.infer(inputs)["y"].tolist() == [[0, 1], [2, 3], [4, 5]]
    call = runner.prepare(inputs)
    for _ in range(3):
        call()
    (found,) = call._binding.get_outputs()  # type: ignore[attr-defined]
    assert found.numpy().tolist() == [[0, 1], [2, 3], [4, 5]]


def test_a_shape_that_was_declared_wrongly_is_not_tried_again(
    load: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each try is a run that fails, and a red line in a service's log."""
    model = graph([node("Reshape x to -> y")], x=("n",), y=(2, 2), others={"to": ("INT64", (2,))})
    runner = load(model)
    runner.infer({"x": np.arange(6, dtype=np.float32), "to": np.array([3, 2])})
    capfd.readouterr()
    for rows in (4, 5, 6):
        given = {"x": np.arange(2 * rows, dtype=np.float32), "to": np.array([rows, 2])}
        assert runner.infer(given)["y"].shape == (rows, 2)
    assert "Got invalid dimensions" not in capfd.readouterr().err


def test_outputs_that_are_inputs_weights_or_each_other(load: Open) -> None:
    model = graph([node("Identity x -> y"), node("Identity x -> z")], {"w": scalar(7)})
    for name, shape in (("w", ()), ("z", (4,)), ("x", (4,))):
        model.graph.output.append(helper.make_tensor_value_info(name, 1, shape))
    given = np.arange(4, dtype=np.float32)
    outputs = load(model).infer({"x": given})
    assert list(outputs) == ["y", "w", "z", "x"]
    assert outputs["w"] == 7
    assert all(np.array_equal(outputs[name], given) for name in "yzx")
    outputs["y"][:] = -1
    assert np.array_equal(outputs["z"], given) and np.array_equal(given, np.arange(4))


def test_a_prepared_call_computes_on_what_it_was_given(load: Open) -> None:
    runner = load(graph([node("Mul x x -> y")], x=("n",), y=("n",)))
    first = runner.prepare({"x": np.full(3, 2, np.float32)})
    second = runner.prepare({"x": np.full(5, 3, np.float32)})
    for call, expected in ((second, [9] * 5), (first, [4] * 3)):
        call._bound.outputs[0].fill(0)  # type: ignore[attr-defined]
        call()
        assert call._bound.outputs[0].tolist() == expected  # type: ignore[attr-defined]


def test_nothing_runs_after_closing(load: Open) -> None:
    runner = load(graph([node("Relu x -> y")]))
    call = runner.prepare({"x": np.ones(4, np.float32)})
    runner.close()
    runner.close()
    for late in (call, lambda: runner.infer({"x": np.ones(4, np.float32)}), lambda: runner.prepare({})):
        with pytest.raises(Closed, match="closed"):
            late()


def test_flushing_ends_with_the_run(load: Open) -> None:
    tiny, one = np.float32(1e-40), np.float32(1)
    inputs = {"x": np.ones(1 << 18, np.float32)}
    flush = load(denormal(), **{"session.set_denormal_as_zero": "1"})
    # Pool threads and the calling one alike: all of it, each time.
    assert all(np.isnan(flush.infer(inputs)["y"]).all() for _ in range(3))
    flush.prepare(inputs)()
    assert tiny * one == tiny
    keep = load(denormal())
    assert (keep.infer(inputs)["y"] == 1).all()
    with pytest.raises(ZeroDivisionError), flushing(True):
        assert tiny * one == 0
        raise ZeroDivisionError
    assert tiny * one == tiny


def test_the_first_session_of_a_process_does_not_decide_for_the_others(tmp_path: Path) -> None:
    onnx.save(denormal(), tmp_path / "m.onnx")
    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        import numpy as np
        from routetune.tasks.engines.base import BuildOrder
        from routetune.tasks.engines.onnxruntime.backend import OnnxRuntime
        backend, folder = OnnxRuntime(), Path(sys.argv[1])
        for value in ("1", "0", "1"):
            route = {"-session.set_denormal_as_zero": value}
            engine = backend.build(BuildOrder(folder / "m.onnx", route, folder / "engine"))
            outputs = backend.load(engine, "cpu", {}).infer({"x": np.ones(4, np.float32)})
            print(np.isnan(outputs["y"]).all(), np.float32(1e-40) * np.float32(1) > 0)
    """)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["True", "True", "False", "True", "True", "True"]


def test_weights_of_every_kind_reach_the_engine(load: Open) -> None:
    """bfloat16 and float8 weights, cast to float."""
    for number, dtype in ((16, ml_dtypes.bfloat16), (17, ml_dtypes.float8_e4m3fn)):
        weight = values(dtype, (4,))
        model = typed("Identity", 1, 1, (4,))
        del model.graph.node[:]
        model.graph.node.extend([node("Cast w -> v", to=1), node("Add x v -> y")])
        tensor = numpy_helper.from_array(weight.view(f"u{weight.itemsize}"), "w")
        tensor.data_type = number
        model.graph.initializer.append(tensor)
        got = load(model).infer({"x": np.zeros(4, np.float32)})["y"]
        assert np.array_equal(got, weight.astype(np.float32))
