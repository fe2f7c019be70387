"""A loaded ONNX Runtime engine: one session, fed and read through I/O binding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from routetune.tasks.engines.feeding import checked_inputs
from routetune.tasks.engines.onnxruntime.denormals import FlushingMode, flushing
from routetune.tasks.engines.onnxruntime.tensors import Element, Unwritten, element_of

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]
    Shapes = tuple[tuple[int, ...], ...]


class Closed(RuntimeError):
    """The engine was closed; it cannot run any more."""


class SessionRunner:
    """Runs one session. Not for several threads at once, but its prepared calls are.

    Args:
        session: an onnxruntime.InferenceSession.
        flush: treat denormals as zero on the calling thread while it runs.

    Raises:
        BadInput: an input or output is of a type that cannot be an array here.
    """

    #: A session may run on several threads at once; what is bound belongs to the prepared call.
    concurrent = True

    def __init__(self, session: Any, flush: bool = False) -> None:
        self._session = session
        self._flush = flush
        self._inputs = {value.name: element_of(value.name, value.type) for value in session.get_inputs()}
        self._outputs = {value.name: element_of(value.name, value.type) for value in session.get_outputs()}
        self._declared = _declared(session)
        # Output shapes by input shapes, as seen; None where they turned out not to follow from them.
        self._shapes: dict[Shapes, Shapes | None] = {}
        self._misdeclared = False  # the model gives an output another shape than it says
        self._calls: list[_Call] = []

    def infer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once; every output by name, in the model's order, in memory of its own.

        The outputs are bound to buffers filled with the sentinel of their type (`Element.sentinel`: NaN where
        the type has one), so that a value which no kernel wrote shows. An output's shape is needed for that;
        unless the model declares it, it is learned from one more run, with buffers of the library's own.
        Where the shape follows from the values of the inputs, the library's buffers are used throughout.

        Raises:
            BadInput: an input is missing, unknown, or of another type than the model's.
            Closed: after `close`.
            Unwritten: a kernel left out part of a boolean output; other types have a sentinel that shows.
            Exception: the library's own, when the run fails.
        """
        fed = self._checked(inputs)
        shapes = self._learned(fed)
        if shapes is not None:
            try:
                return self._run(fed, shapes)
            except (Unwritten, MemoryError):
                raise
            except Exception:
                # Either the shapes depend on values after all, or the run fails whatever the buffers.
                outputs = self._run(fed, None)
                self._shapes[shapes_of(fed.values())] = None
                self._misdeclared |= self._declared not in (None, shapes_of(outputs.values()))
                return outputs
        return self._run(fed, None)

    def prepare(self, inputs: Mapping[str, Array]) -> Callable[[], None]:
        """A call that runs once on these inputs: they and the outputs stay bound, nothing is copied.

        Raises:
            BadInput, Closed, Exception: as `infer`, which is called first.
        """
        self.infer(inputs)  # so that the shapes known are those of these very values
        fed = self._checked(inputs)
        shapes = self._shapes[shapes_of(fed.values())]
        bound = self._bound(fed, shapes)
        call = _Call(
            self._session.run_with_iobinding, bound, self._flush, self._outputs if shapes is None else ()
        )
        self._calls.append(call)
        return call

    def close(self) -> None:
        """Free the session, and the buffers of every prepared call."""
        for call in self._calls:
            call.close()
        self._calls.clear()
        self._shapes.clear()
        self._session = None

    def _checked(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The inputs in the model's order, contiguous."""
        if self._session is None:
            raise Closed("the engine is closed; load it again to run it")
        return checked_inputs(inputs, {name: element.dtype for name, element in self._inputs.items()})

    def _learned(self, fed: Mapping[str, Array]) -> Shapes | None:
        """The outputs' shapes for inputs of these shapes; runs once when not known."""
        key = shapes_of(fed.values())
        if key not in self._shapes:
            if self._misdeclared:
                self._shapes[key] = None
            else:
                self._shapes[key] = self._declared or shapes_of(self._run(fed, None).values())
        return self._shapes[key]

    def _run(self, fed: Mapping[str, Array], shapes: Shapes | None) -> dict[str, Array]:
        bound = self._bound(fed, shapes)
        with flushing(self._flush):
            self._launch(bound.binding)
        buffers: Sequence[Array | None] = bound.outputs or [None] * len(self._outputs)
        results = zip(self._outputs.items(), bound.binding.get_outputs(), buffers, strict=True)
        return {name: _taken(element, value, buffer) for (name, element), value, buffer in results}

    def _launch(self, binding: Any) -> None:
        self._session.run_with_iobinding(binding)

    def _bound(self, fed: Mapping[str, Array], shapes: Shapes | None) -> _Bound:
        """The inputs bound, and fresh outputs: sentinels of `shapes`, or the library's own buffers."""
        bound = _Bound(self._session.io_binding(), [], [])
        for name, array in fed.items():
            element = self._inputs[name]
            bound.inputs.append(element.packed(array))
            _bind(bound.binding.bind_input, name, element, array.shape, bound.inputs[-1])
        if shapes is None:
            bind_anew(bound.binding, self._outputs)
            return bound
        for (name, element), shape in zip(self._outputs.items(), shapes, strict=True):
            bound.outputs.append(element.sentinel(shape))
            _bind(bound.binding.bind_output, name, element, shape, bound.outputs[-1])
        return bound


@dataclass(slots=True)
class _Bound:
    """A binding, and the memory that it knows only the addresses of."""

    binding: Any
    inputs: list[Array]
    outputs: list[Array]


class _Call:
    """One prepared inference; calling it does little else than run.

    Args:
        unbound: the outputs whose buffers are the library's own.
    """

    __slots__ = ("_binding", "_bound", "_mode", "_run", "_unbound")

    def __init__(
        self, run: Callable[[Any], None], bound: _Bound, flush: bool, unbound: Iterable[str] = ()
    ) -> None:
        self._run = run
        self._unbound = tuple(unbound)
        self._bound: _Bound | None = bound
        self._binding = bound.binding
        self._mode = FlushingMode() if flush else None

    def __call__(self) -> None:
        if self._unbound:
            bind_anew(self._binding, self._unbound)
        if self._mode is None:
            self._run(self._binding)
            return
        self._mode.enter()
        try:
            self._run(self._binding)
        finally:
            self._mode.leave()

    def close(self) -> None:
        self._run = _refuse
        self._binding = self._bound = self._mode = None


def bind_anew(binding: Any, outputs: Iterable[str]) -> None:
    """Leave outputs to the library.

    Its own buffer of the last run would count as given, and be compared with what the model declares, which
    is not always so.
    """
    binding.clear_binding_outputs()
    for name in outputs:
        binding.bind_output(name)


def _refuse(binding: None) -> None:
    raise Closed("the engine is closed; load it again to run it")


def _bind(
    bind: Callable[..., None], name: str, element: Element, shape: Sequence[int], buffer: Array
) -> None:
    # By ONNX type number: NumPy has no names for bfloat16, float8 and int4.
    bind(name, "cpu", 0, element.onnx_type, list(shape), buffer.ctypes.data)


def _taken(element: Element, value: Any, buffer: Array | None) -> Array:
    """The result: our buffer, or a copy of the library's own, which lives no longer than the binding.

    An output that is an input or a weight as it stands is handed over where it lies, whatever was bound.
    """
    shape = tuple(value.shape())
    if buffer is None or (buffer.size and value.data_ptr() != buffer.ctypes.data):
        return element.copied(value)
    return element.unpacked(buffer, shape)


def _declared(session: Any) -> Shapes | None:
    """The outputs' shapes where the model gives them all in numbers."""
    shapes = tuple(tuple(value.shape) for value in session.get_outputs())
    return shapes if all(isinstance(size, int) for shape in shapes for size in shape) else None


def shapes_of(arrays: Iterable[Array]) -> Shapes:
    """The shape of each array."""
    return tuple(array.shape for array in arrays)
