"""A loaded engine of ONNX Runtime's CUDA provider: a session on a stream of ours, its data on the device.

With a CUDA graph the library captures a run at the first call under a new `gpu_graph_id` and replays it at
the later ones, on the addresses of the first. So each set of buffers has an id of its own, and stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

from routetune.tasks.engines import cuda
from routetune.tasks.engines.cuda import Array, Buffer, Inference, Stream
from routetune.tasks.engines.memory import lacks_memory
from routetune.tasks.engines.onnxruntime.runner import Closed, SessionRunner, bind_anew, shapes_of

if TYPE_CHECKING:
    from routetune.tasks.engines.onnxruntime.runner import Shapes
    from routetune.tasks.engines.onnxruntime.tensors import Element

#: The graph id that means: neither capture nor replay.
_NO_GRAPH = -1


class CudaRunner(SessionRunner):
    """Runs one session. Not for several threads at once: its stream and its graphs are for one.

    Args:
        session: an onnxruntime.InferenceSession that computes on `stream`.
        stream: closed with the runner.
        device: the N of "cuda:N".
        use_graph: the session has CUDA graphs enabled.

    Raises:
        BadInput: an input or output is of a type that cannot be an array here.
    """

    concurrent = False

    def __init__(self, session: Any, stream: Stream, device: int, use_graph: bool) -> None:
        super().__init__(session)
        self._stream, self._device, self._use_graph = stream, device, use_graph
        self._frames: dict[Shapes, _Frame] = {}
        self._prepared: list[_Frame] = []
        self._ids = count(1)

    def prepare(self, inputs: Mapping[str, Array]) -> Callable[[], None]:
        """A call that runs once on these inputs, which are on the device, and waits for the end.

        Raises:
            BadInput, Closed, MemoryError, Exception: as `infer`, which is called first.
        """
        self.infer(inputs)  # so that the shapes known are those of these very values
        fed = self._checked(inputs)
        frame = self._frame(fed, self._shapes[shapes_of(fed.values())])
        self._prepared.append(frame)
        frame()
        return frame

    def close(self) -> None:
        """Free the session, its stream, and the buffers of every prepared call."""
        for frame in (*self._frames.values(), *self._prepared):
            frame.close()
        self._frames.clear()
        self._prepared.clear()
        super().close()
        self._stream.close()

    def _run(self, fed: Mapping[str, Array], shapes: Shapes | None) -> dict[str, Array]:
        if shapes is None:  # through the host: where an output of unknown shape lies is the library's choice
            with device_errors():
                return super()._run(fed, None)
        key = shapes_of(fed.values())
        frame = self._frames.pop(key, None)
        if frame is None:
            frame = self._frame(fed, shapes)
            if self._use_graph:
                frame()  # captures, so that what is judged below is a replay
        try:
            frame.fill(fed)
            frame()
            results = frame.results()
        except BaseException:
            frame.close()
            raise
        self._frames[key] = frame
        return results

    def _launch(self, binding: Any) -> None:
        self._session.run_with_iobinding(binding, _run_options(self._use_graph, _NO_GRAPH))

    def _frame(self, fed: Mapping[str, Array], shapes: Shapes | None) -> _Frame:
        options = _run_options(self._use_graph, next(self._ids) if shapes is not None else _NO_GRAPH)
        # The stream is waited for by whoever wants the results, not by the library at the end of each run.
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        frame = _Frame(self._session, self._stream, self._device, options)
        try:
            frame.bind(fed, self._inputs, dict(zip(self._outputs, shapes or (), strict=False)), self._outputs)
        except BaseException:
            frame.close()
            raise
        return frame


class _Frame(Inference):
    """One set of buffers on the device, bound to the session for good."""

    def __init__(self, session: Any, stream: Stream, device: int, options: Any) -> None:
        super().__init__(stream)
        self._run: Callable[..., None] = session.run_with_iobinding
        self._binding: Any = session.io_binding()
        self._device, self._options = device, options
        self._elements: dict[str, Element] = {}
        self._inputs: dict[str, tuple[Element, Buffer]] = {}
        self._outputs: dict[str, tuple[Buffer, Array]] = {}
        self._kept: list[Array] = []  # what copies in the stream may still read
        self._unbound: tuple[str, ...] = ()

    def bind(
        self,
        fed: Mapping[str, Array],
        inputs: Mapping[str, Element],
        shapes: Mapping[str, tuple[int, ...]],
        outputs: Mapping[str, Element],
    ) -> None:
        """Bind inputs, and outputs of these shapes; others are left to the library, on the host."""
        for name, array in fed.items():
            packed = inputs[name].packed(array)
            self._inputs[name] = inputs[name], Buffer(packed.nbytes)
            self._bind(self._binding.bind_input, name, inputs[name], array.shape, self._inputs[name][1])
        for name, element in outputs.items():
            self._elements[name] = element
            if name not in shapes:
                continue
            sentinel = element.sentinel(shapes[name])
            self._outputs[name] = Buffer(sentinel.nbytes), sentinel
            self._bind(self._binding.bind_output, name, element, shapes[name], self._outputs[name][0])
        self._unbound = () if shapes else tuple(outputs)
        self.fill(fed)

    def fill(self, fed: Mapping[str, Array]) -> None:
        """Upload the inputs, and sentinels over the outputs."""
        self._kept = [self._inputs[name][0].packed(array) for name, array in fed.items()]
        for (_, buffer), array in zip(self._inputs.values(), self._kept, strict=True):
            buffer.upload(array, self.stream)
        for buffer, sentinel in self._outputs.values():
            buffer.upload(sentinel, self.stream)
        self.stream.synchronize()

    def enqueue(self) -> None:
        """Put one inference, or the launch of its graph, into the stream."""
        try:
            if self._unbound:
                bind_anew(self._binding, self._unbound)
            self._run(self._binding, self._options)
        except Exception as error:
            if (told := named(error)) is error:
                raise
            raise told from error

    def results(self) -> dict[str, Array]:
        """The outputs, copied from where they lie; for an input or weight that is not our buffer."""
        found = {}
        for (name, element), value in zip(self._elements.items(), self._binding.get_outputs(), strict=True):
            shape = tuple(value.shape())
            if value.device_name().lower() == "cpu":
                found[name] = element.copied(value)
                continue
            host = element.sentinel(shape)
            cuda.download(value.data_ptr(), host, self.stream)
            self.stream.synchronize()
            found[name] = element.unpacked(host, shape)
        return found

    def close(self) -> None:
        """Free the buffers; later calls are refused."""
        super().close()
        self._run, self._binding = _refuse, None
        for buffer in (
            *(one for _, one in self._inputs.values()),
            *(one for one, _ in self._outputs.values()),
        ):
            buffer.close()

    def _bind(
        self,
        bind: Callable[..., None],
        name: str,
        element: Element,
        shape: tuple[int, ...],
        buffer: Buffer,
    ) -> None:
        bind(name, "cuda", self._device, element.onnx_type, list(shape), buffer.address)


@contextmanager
def device_errors() -> Iterator[None]:
    """Errors of the library within, as `named` tells them."""
    try:
        yield
    except Exception as error:
        if (told := named(error)) is error:
            raise
        raise told from error


def named(error: Exception) -> Exception:
    """What an error of the library really is: MemoryError where the device's memory is used up.

    An error that left the CUDA context unusable ends the process.
    """
    cuda.check(cuda.runtime().cudaDeviceSynchronize(), f"running an engine: {error}")
    if not lacks_memory(str(error)):
        return error
    free, total = cuda.free_memory()
    return MemoryError(
        f"the GPU has no memory left ({free >> 20} of {total >> 20} MiB are free now): {str(error).strip()}"
    )


def _run_options(use_graph: bool, graph: int) -> Any:
    import onnxruntime

    options = onnxruntime.RunOptions()
    if use_graph:
        options.add_run_config_entry("gpu_graph_id", str(graph))
    return options


def _refuse(*_: Any) -> None:
    raise Closed("the engine is closed; load it again to run it")
