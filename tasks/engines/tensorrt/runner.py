"""A loaded TensorRT engine: one execution context on a stream of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from routetune.tasks.engines.cuda import Array, Buffer, Graph, Inference, Stream
from routetune.tasks.engines.feeding import checked_inputs
from routetune.tasks.engines.onnxruntime.tensors import Element
from routetune.tasks.engines.tensorrt.library import library, log
from routetune.tasks.engines.tensorrt.tensors import element_of
from routetune.tasks.errors import BadInput


class Closed(RuntimeError):
    """The engine was closed; it cannot run any more."""


def deserialized(data: bytes, *, host_code: bool) -> Any:
    """The engine in `data`, with the runtime that must outlive it.

    Args:
        host_code: allow code for the host in it, as a version-compatible engine needs.

    Raises:
        RuntimeError: TensorRT refuses it; the message is its own.
    """
    trt = library()
    log().take()
    runtime = trt.Runtime(log())
    if host_code:
        runtime.engine_host_code_allowed = True
    engine = runtime.deserialize_cuda_engine(data)
    if engine is None:
        raise RuntimeError(f"TensorRT cannot load the engine: {log().take() or 'it gave no reason'}")
    return engine


def inspected(engine: Any) -> str:
    """The engine inspector's account of all layers, in JSON."""
    trt = library()
    inspector = engine.create_engine_inspector()
    return str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))


class EngineRunner:
    """Runs one engine. Not for several threads at once.

    Args:
        engine: an ICudaEngine.
        use_graph: let prepared calls launch a CUDA graph, where the engine can be captured.
    """

    def __init__(self, engine: Any, use_graph: bool = False) -> None:
        trt = library()
        self._engine: Any = engine
        self._use_graph = use_graph
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        modes = {name: engine.get_tensor_mode(name) for name in names}
        self._elements = {name: element_of(name, engine.get_tensor_dtype(name).name) for name in names}
        self._inputs = [name for name in names if modes[name] == trt.TensorIOMode.INPUT]
        self._outputs = [name for name in names if modes[name] == trt.TensorIOMode.OUTPUT]
        self._calls: list[_Work] = []

    def infer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once; every output by name, in memory of its own.

        Output buffers hold the sentinel of their type first. An output whose shape depends on values has no
        buffer before the run: TensorRT asks for it then, and it is filled as it is allocated.

        Raises:
            BadInput: an input is missing, unknown, of another type, or fits no profile.
            Closed: after `close`.
            RuntimeError: TensorRT's own, when the run fails.
        """
        work = self._work(inputs)
        try:
            work.run()
            work.stream.synchronize()
            return work.results()
        finally:
            work.close()

    def prepare(self, inputs: Mapping[str, Array]) -> Callable[[], None]:
        """A call that runs once on these inputs, which are on the device, and waits for the end.

        Raises:
            BadInput, Closed, RuntimeError: as `infer`.
        """
        work = self._work(inputs)
        self._calls.append(work)
        work.run()  # once outside a graph: TensorRT may allocate at the first run after a change of shapes
        work.stream.synchronize()
        if self._use_graph:
            work.capture()
        return work

    def close(self) -> None:
        """Free the engine, and the buffers of every prepared call."""
        for work in self._calls:
            work.close()
        self._calls.clear()
        self._engine = None

    def _work(self, inputs: Mapping[str, Array]) -> _Work:
        if self._engine is None:
            raise Closed("the engine is closed; load it again to run it")
        fed = checked_inputs(inputs, {name: self._elements[name].dtype for name in self._inputs})
        return _Work(self._engine, fed, self._elements, self._outputs)


class _Work(Inference):
    """One set of inputs on the device, with an execution context, a stream and buffers of its own."""

    def __init__(
        self, engine: Any, fed: Mapping[str, Array], elements: Mapping[str, Element], outputs: list[str]
    ) -> None:
        super().__init__(Stream())
        self._elements, self._outputs = elements, outputs
        self._buffers: dict[str, Buffer] = {}
        self._host: dict[str, Array] = {}
        self._kept: list[Array] = []  # what copies in the stream may still read
        self._allocators: dict[str, Any] = {}
        self._graph: Graph | None = None
        self._context: Any = engine.create_execution_context()
        if self._context is None:
            raise MemoryError(f"TensorRT makes no execution context: {log().take() or 'no reason given'}")
        self._choose_profile(engine, fed)
        for name, array in fed.items():
            self._bind_input(engine, name, array)
        if unclear := self._context.infer_shapes():
            raise BadInput(f"the shapes of {', '.join(unclear)} do not follow from the inputs")
        for name in outputs:
            self._bind_output(engine, name)
        self.stream.synchronize()

    def enqueue(self) -> None:
        """Put one inference into the stream, as a graph where one was captured."""
        if self._graph is not None:
            self._graph.launch(self.stream)
        else:
            self.run()

    def run(self) -> None:
        """Put one inference into the stream, kernel by kernel."""
        if self._context is None:
            raise Closed("the engine is closed; load it again to run it")
        if not self._context.execute_async_v3(self.stream.handle):
            said = log().take()
            self.stream.synchronize()  # a sticky error shows here, and ends the process
            raise RuntimeError(f"TensorRT does not run the engine: {said or 'it gave no reason'}")

    def capture(self) -> None:
        """Make later calls launch a graph of the run."""
        if self._allocators:
            raise BadInput("an output's shape depends on values, so no CUDA graph can be made of the engine")
        self._graph = self.stream.capture(self.run)

    def results(self) -> dict[str, Array]:
        """The outputs, copied to the host."""
        found = {}
        for name in self._outputs:
            element = self._elements[name]
            allocator = self._allocators.get(name)
            shape = allocator.shape if allocator else tuple(self._context.get_tensor_shape(name))
            host = self._host.get(name)
            if host is None:
                host = element.sentinel(shape)
                buffer = allocator.buffer if allocator else self._buffers[name]
                if host.nbytes:
                    buffer.download(host, self.stream)
                self.stream.synchronize()
            found[name] = element.unpacked(host, shape)
        return found

    def close(self) -> None:
        """Free everything; safe to call again."""
        super().close()
        graph, self._graph = self._graph, None
        self._context = None
        if graph is not None:
            graph.close()
        for buffer in (*self._buffers.values(), *(one.buffer for one in self._allocators.values())):
            buffer.close()
        self.stream.close()

    def _choose_profile(self, engine: Any, fed: Mapping[str, Array]) -> None:
        """The first optimization profile that all shapes fit into. Raises BadInput when there is none."""
        for index in range(engine.num_optimization_profiles):
            if all(_fits(engine, name, array.shape, index) for name, array in fed.items()):
                if index and not self._context.set_optimization_profile_async(index, self.stream.handle):
                    raise RuntimeError(f"TensorRT does not switch to profile {index}: {log().take()}")
                self.stream.synchronize()
                return
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in fed.items())
        raise BadInput(f"no profile of the engine takes inputs of shapes {shapes}")

    def _bind_input(self, engine: Any, name: str, array: Array) -> None:
        if not self._context.set_input_shape(name, tuple(array.shape)):
            raise BadInput(f"TensorRT takes no input {name!r} of shape {list(array.shape)}: {log().take()}")
        self._place(engine, name, self._elements[name].packed(array))

    def _bind_output(self, engine: Any, name: str) -> None:
        shape, element = tuple(self._context.get_tensor_shape(name)), self._elements[name]
        if -1 in shape:
            self._allocators[name] = allocator_class()(element, self.stream)
            self._context.set_output_allocator(name, self._allocators[name])
        else:
            self._place(engine, name, element.sentinel(shape))

    def _place(self, engine: Any, name: str, array: Array) -> None:
        """Put an array where the engine wants the tensor, on the host or the device."""
        self._kept.append(array)
        address = array.ctypes.data
        if engine.get_tensor_location(name) == library().TensorLocation.HOST:
            self._host[name] = array
        else:
            self._buffers[name] = Buffer(array.nbytes)
            self._buffers[name].upload(array, self.stream)
            address = self._buffers[name].address
        self._context.set_tensor_address(name, address)


@cache
def allocator_class() -> type[Any]:
    """Our IOutputAllocator. Made at the first call, since its base class is TensorRT's."""
    trt = library()

    class Allocator(trt.IOutputAllocator):  # type: ignore[misc,name-defined]
        """Memory for one output whose shape is known only after the run."""

        def __init__(self, element: Element, stream: Stream) -> None:
            trt.IOutputAllocator.__init__(self)
            self.buffer = Buffer(0)
            self.shape: tuple[int, ...] = ()
            self._element, self._stream = element, stream

        def reallocate_output_async(
            self, tensor_name: str, memory: int, size: int, alignment: int, stream: int
        ) -> int:
            # Called from native code that no exception may enter; 0 tells TensorRT that there is no memory.
            try:
                if size > self.buffer.size:
                    self.buffer.close()
                    self.buffer = Buffer(size)
                count = size // max(1, self._element.dtype.itemsize)
                filled = self._element.sentinel((count,))
                self.buffer.upload(filled[:count], self._stream)
                self._stream.synchronize()
                return self.buffer.address
            except Exception as error:
                print(f"no memory for output {tensor_name!r}: {error}", flush=True)
                return 0

        def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:
            return int(self.reallocate_output_async(tensor_name, memory, size, alignment, 0))

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            self.shape = tuple(shape)

    return Allocator


def _fits(engine: Any, name: str, shape: tuple[int, ...], profile_index: int) -> bool:
    low, _, high = (tuple(limit) for limit in engine.get_tensor_profile_shape(name, profile_index))
    return len(low) == len(shape) and all(
        least <= size <= most for least, size, most in zip(low, shape, high, strict=True)
    )
