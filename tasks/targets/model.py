"""Model intake: what a model takes and gives, with everything that would fail every route refused at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from routetune.tasks.errors import BadInput
from routetune.tasks.reading import Look, look
from routetune.tasks.targets.digest import digest_of
from routetune.tasks.targets.indices import IndexRange, index_ranges
from routetune.tasks.targets.memo import Memo, no_memo
from routetune.tasks.targets.onnxfile import read_model
from routetune.tasks.targets.operators import check_operators, count_operators
from routetune.tasks.targets.places import Place, places_of
from routetune.tasks.targets.problems import nearest
from routetune.tasks.targets.profiles import complete_profiles
from routetune.tasks.targets.rules import check_accuracy_rules
from routetune.tasks.targets.sidecars import check_sidecars
from routetune.tasks.targets.weights import kept_bytes
from routetune.tasks.targets.wiring import check_wiring

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto
    from routetune.tasks.targets.schema import Target
    from routetune.tasks.targets.shapes import Profile

#: Element types of inputs and outputs that NumPy itself has, and those that ml_dtypes adds to it.
NUMPY = frozenset(
    {"float16", "float32", "float64", "bool"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
SMALL = frozenset(
    {"bfloat16", "int4", "uint4"} | {f"float8_{name}" for name in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")}
)
SUPPORTED = NUMPY | SMALL


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One input or output.

    Attributes:
        dtype: the NumPy name, such as "float32"; "" for an output whose type cannot be inferred.
        shape: per dimension a number, a symbol or None (dynamic, unnamed); None when the rank is not known.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None

    @property
    def dynamic(self) -> bool:
        return self.shape is None or any(not isinstance(size, int) for size in self.shape)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model that passed intake.

    Attributes:
        path: absolute path of the file, links not resolved; sidecars are found from here.
        inputs, outputs: by name, in the model's order; initializers are not inputs.
        digest: see `digest.model_digest`.
        operators: how often each occurs, "Conv" or "domain:Name".
        size_bytes: the file and the tensors in its sidecars.
        kept_bytes: of the weights that every engine holds; see `weights.kept_bytes`.
        files: the file and its sidecars.
        seen: what the file system said of each before it was read, see `reading.look`.
        profiles: the target's profiles, completed by the inputs of fixed shape; never empty.
        indices: the inputs that select rows of a table.
        places: where Q/DQ can be put, grouped as the target says.
    """

    path: Path
    inputs: dict[str, TensorInfo]
    outputs: dict[str, TensorInfo]
    digest: str
    operators: dict[str, int]
    size_bytes: int
    kept_bytes: int
    files: tuple[Path, ...]
    seen: tuple[Look, ...]
    profiles: tuple[Profile, ...]
    indices: dict[str, IndexRange]
    places: tuple[Place, ...] = ()


def inspect_model(target: Target, memo: Memo = no_memo) -> ModelInfo:
    """Read the target's model and refuse, before anything is built, what no route could make work.

    Raises:
        BadInput: one sentence on the model, its sidecars, an operator, an input or output, a shape, a range
            or a plugin of the target.
    """
    path, plugins, grouping = target.model, bool(target.engine.plugins), target.quantization.places
    _check_plugins(target)
    what = f"model{' and plugins' * plugins} by {grouping}"
    found = memo(what, path, lambda: _intake(path, plugins, grouping))
    inputs, outputs = _recalled(found["inputs"]), _recalled(found["outputs"])
    _check_reference(target, inputs)
    check_accuracy_rules(target, outputs)
    return ModelInfo(
        path=path,
        inputs=inputs,
        outputs=outputs,
        profiles=complete_profiles(target, inputs),
        operators=found["operators"],
        indices={name: IndexRange(**one) for name, one in found["indices"].items()},
        size_bytes=found["size_bytes"],
        kept_bytes=found["kept_bytes"],
        files=tuple(map(Path, found["files"])),
        seen=tuple(map(tuple, found["seen"])),
        digest=found["digest"],
        places=tuple(Place(name, tuple(nodes), text) for name, nodes, text in found["places"]),
    )


def _intake(path: Path, plugins: bool, grouping: str) -> tuple[dict[str, Any], list[Path]]:
    """What the model's files alone decide, as plain JSON, and those files."""
    before = look(path)
    model = read_model(path)
    sidecars = check_sidecars(model, path)
    check_operators(model, path, plugins)
    check_wiring(model, path)
    files = [path, *sorted({sidecar.file for sidecar in sidecars})]
    return {
        "seen": [before, *map(look, files[1:])],
        "inputs": {name: [one.dtype, one.shape] for name, one in _inputs(model, path).items()},
        "outputs": {name: [one.dtype, one.shape] for name, one in _outputs(model, path).items()},
        "operators": count_operators(model),
        "indices": {name: asdict(one) for name, one in index_ranges(model).items()},
        "size_bytes": path.stat().st_size + sum(sidecar.size for sidecar in sidecars),
        "kept_bytes": kept_bytes(model),
        "files": [str(file) for file in files],
        "places": [[one.name, one.nodes, one.help] for one in places_of(model, grouping)],
        "digest": digest_of(model, path),  # last: it empties the message
    }, files


def _recalled(tensors: dict[str, Any]) -> dict[str, TensorInfo]:
    return {
        name: TensorInfo(name, dtype, None if shape is None else tuple(shape))
        for name, (dtype, shape) in tensors.items()
    }


def interface(path: Path) -> tuple[dict[str, TensorInfo], dict[str, TensorInfo]]:
    """The inputs and outputs of an ONNX file, by name.

    Raises:
        BadInput: it is none, or takes or gives what arrays cannot be.
    """
    model = read_model(path)
    return _inputs(model, path), _outputs(model, path)


def _inputs(model: ModelProto, path: Path) -> dict[str, TensorInfo]:
    constants = {tensor.name for tensor in model.graph.initializer}
    constants |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    values = [value for value in model.graph.input if value.name not in constants]
    return _tensors(values, "input", path)


def _outputs(model: ModelProto, path: Path) -> dict[str, TensorInfo]:
    """The outputs; types that the model leaves out are inferred as far as onnx can."""
    values = list(model.graph.output)
    if not all(_kind(value) for value in values):
        from onnx import shape_inference

        try:
            values = list(shape_inference.infer_shapes(model).graph.output)
        except Exception:  # inference is an extra: whatever it trips over, the reference run will name
            values = list(model.graph.output)
    return _tensors(values, "output", path)


def _tensors(values: Iterable[ValueInfoProto], role: str, path: Path) -> dict[str, TensorInfo]:
    values = list(values)
    repeated = [name for name, count in Counter(value.name for value in values).items() if count > 1]
    if repeated:
        raise BadInput(
            f"model {path} has several {role}s of the name {repeated[0]!r}, which cannot be told apart; give "
            "each its own name"
        )
    return {value.name: _tensor(value, role, path) for value in values}


def _tensor(value: ValueInfoProto, role: str, path: Path) -> TensorInfo:
    kind = _kind(value)
    if kind == "" and role == "output":
        return TensorInfo(value.name, "", None)
    dtype = _dtype(value) if kind == "tensor_type" else kind.removesuffix("_type") or "not stated"
    if dtype not in SUPPORTED:
        raise BadInput(
            f"model {path}: {role} {value.name!r} is of type {dtype}, which cannot be fed or compared; "
            f"convert it inside the model to a tensor of one of {', '.join(sorted(SUPPORTED))}, or leave it "
            "out of the export (of scikit-learn's classifiers: zipmap=False, and classes that are integers)"
        )
    return TensorInfo(value.name, dtype, _shape(value.type.tensor_type))


def _kind(value: ValueInfoProto) -> str:
    """ "tensor_type", "sequence_type", ..., or "" where the model does not say."""
    kind: str = value.type.WhichOneof("value") or ""
    return "" if kind == "tensor_type" and not value.type.tensor_type.elem_type else kind


def _dtype(value: ValueInfoProto) -> str:
    from onnx import TensorProto
    from onnx.helper import tensor_dtype_to_np_dtype

    names = {number: name.lower() for name, number in TensorProto.DataType.items()}
    number: int = value.type.tensor_type.elem_type
    name: str = names.get(number, f"number {number}")
    if number not in names or name == "string":  # NumPy would call strings objects
        return name
    return str(tensor_dtype_to_np_dtype(number).name)


def _shape(tensor: Any) -> tuple[int | str | None, ...] | None:
    if not tensor.HasField("shape"):
        return None
    return tuple(_size(dimension) for dimension in tensor.shape.dim)


def _size(dimension: Any) -> int | str | None:
    """Some exporters write -1 for a dynamic dimension."""
    if dimension.HasField("dim_value") and dimension.dim_value >= 0:
        return int(dimension.dim_value)
    return str(dimension.dim_param) or None


def _check_plugins(target: Target) -> None:
    for plugin in target.engine.plugins:
        try:
            found = plugin.is_file()
        except OSError:  # such as a name too long
            found = False
        if not found:
            raise BadInput(f"{target.path}: engine.plugins names {plugin}, which is not a file")


def _check_reference(target: Target, inputs: dict[str, TensorInfo]) -> None:
    labels = target.reference.labels
    if labels in inputs:
        raise BadInput(
            f"{target.path}: reference.labels = {labels!r} is an input of the model; name another array"
        )
    for name in target.reference.ranges:
        if name not in inputs:
            raise BadInput(
                f"{target.path}: reference.ranges names {name!r}, which is not an input of the model"
                f"{nearest(name, inputs)}; its inputs are {', '.join(inputs) or '(none)'}"
            )
        if inputs[name].dtype == "bool":
            raise BadInput(
                f"{target.path}: reference.ranges.{name} is for numbers, but the input is of type bool"
            )
