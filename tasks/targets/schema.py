"""The target file: what a user wants tuned, as validated settings."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from routetune.tasks.errors import BadInput
from routetune.tasks.reading import TEXT, read_bounded
from routetune.tasks.targets.devices import check_devices
from routetune.tasks.targets.fields import CLASS, LARGEST, NotNegative, Positive, Section, Share, Text, number
from routetune.tasks.targets.judging import Accuracy
from routetune.tasks.targets.problems import explain
from routetune.tasks.targets.quantization import Quantization
from routetune.tasks.targets.shapes import Profile, ShapeRange

#: What computes the reference outputs, where they are not saved ones.
SOURCES = ("onnxruntime", "default-route")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_KEY = r"""(?:"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+'|[A-Za-z0-9_-]++)"""
#: A key of more than 64 parts: the parser's time goes with the square of their number.
_MANY_PARTS = re.compile(rf"(?:^|[\[{{,])[ \t]*+(?:{_KEY}[ \t]*+\.[ \t]*+){{64}}", re.MULTILINE)


def _path(value: Any, info: ValidationInfo) -> Path:
    """A path of the target file, relative to the folder of that file.

    Links among the folders are followed, a link that is the file itself is not: such a model finds its
    sidecars beside the link, as in onnxruntime, and not beside what the link points to.
    """
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("must be a path in a non-empty string")
    path = Path((info.context or {})["folder"]) / value
    try:
        return path.parent.resolve() / path.name
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise ValueError(f"must be a path that can be followed ({error})") from None


def _several(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _range(value: Any) -> tuple[int | float, int | float]:
    rule = "must be a list of two finite numbers, the smallest and the largest value"
    if not isinstance(value, tuple) or len(value) != 2:
        raise ValueError(rule)
    low, high = value
    if not all(math.isfinite(number(end)) for end in value):
        raise ValueError(rule)
    if low > high:
        raise ValueError("must have the smallest value first")
    return (low, high)


def _source(value: Any, info: ValidationInfo) -> Any:
    """One of SOURCES, or the files of saved outputs as paths."""
    if value in SOURCES:
        return value
    files = (value,) if isinstance(value, str) else value
    if not (isinstance(files, tuple) and files and all(_is_saved(file) for file in files)):
        raise ValueError(
            f"must be one of {', '.join(SOURCES)}, or name saved outputs: files that end in .npz, one for "
            "each of reference.inputs, or one .json of Polygraphy's"
        )
    if len(files) > 1 and any(file.endswith(".json") for file in files):
        raise ValueError("must name one .json of Polygraphy's alone: it holds the outputs of every input set")
    return tuple(_path(file, info) for file in files)


def _is_saved(value: Any) -> bool:
    return isinstance(value, str) and value.endswith((".npz", ".json"))


ConfigPath = Annotated[Path, BeforeValidator(_path)]
Seed = Annotated[int, Field(ge=0, le=LARGEST)]
Capability = Annotated[str, Field(pattern=r"^[1-9]\d?\.\d$")]


class Reference(Section):
    """The inputs that accuracy is judged on, and what computes the outputs they should give.

    `inputs` are npz files of the user's; without them `samples` seeded sets are drawn at every profile's opt.
    `ranges` bounds the seeded values of an input: [lowest, highest], both included for integers.
    """

    inputs: Annotated[tuple[ConfigPath, ...], BeforeValidator(_several)] | None = None
    labels: Text | None = None
    samples: Annotated[int, Field(ge=1, le=10_000)] = 1
    seed: Seed = 0
    ranges: dict[str, Annotated[tuple[Any, Any], BeforeValidator(_range)]] = Field(default_factory=dict)
    source: Annotated[str | tuple[Path, ...], BeforeValidator(_source)] = "onnxruntime"

    @model_validator(mode="after")
    def _consistent(self) -> Reference:
        if self.inputs is not None and not self.inputs:
            raise ValueError("must name at least one npz file in inputs, or leave inputs out")
        if self.inputs is None and self.labels is not None:
            raise ValueError("must name the npz file in inputs that holds the labels")
        if self.inputs is not None and "samples" in self.model_fields_set:
            raise ValueError("must have either inputs (your own) or samples (seeded), not both")
        if self.saved and self.inputs is None:
            raise ValueError("must name in inputs what the saved outputs of source were made from")
        return self

    @property
    def saved(self) -> tuple[Path, ...]:
        """The files of saved reference outputs; empty where they are computed."""
        return () if isinstance(self.source, str) else self.source


class Search(Section):
    """Which routes are considered, in trtexec's language, and in which order they are tried.

    With `prune` what very likely brings nothing is tried last; nothing is left out for good.
    """

    routes: Annotated[tuple[Text, ...], BeforeValidator(_several), Field(min_length=1)]
    exclude: Annotated[tuple[Text, ...], BeforeValidator(_several)] = ()
    algorithm: Literal[
        "auto", "fast", "full", "guided", "mixed", "model", "racing", "random", "screening"
    ] = "mixed"
    seed: Seed = 0
    prune: bool = True


class Budget(Section):
    """When the search ends: trials, seconds in all, and seconds for the build and the measurement of one."""

    trials: Annotated[int, Field(ge=1, le=LARGEST)] = 200
    seconds: Positive = 3600.0
    trial_seconds: Positive = 300.0


class Timing(Section):
    """How candidates are timed against the control, and what a winner must gain.

    With objective "throughput" `streams` inferences are in flight, and what counts is how fast they complete.
    `cuda_graph` times launches of a CUDA graph of each engine (TensorRT only).
    """

    objective: Literal["latency", "throughput"] = "latency"
    streams: Annotated[int, Field(ge=1, le=1000)] = 1
    min_gain: NotNegative = 0.01
    exclusive: Literal["wait", "require", "warn"] = "wait"
    confidence: Annotated[float, Field(ge=0.5, lt=1, allow_inf_nan=False)] = 0.95
    finalists: Annotated[int, Field(ge=1, le=1000)] = 5
    width: Share = 0.01
    seconds: Positive = 2.0
    loads: Annotated[int, Field(ge=1, le=1000)] = 8
    cuda_graph: bool = False

    @model_validator(mode="after")
    def _streams_are_for_throughput(self) -> Timing:
        if self.objective == "throughput" and self.streams < 2:
            raise ValueError('must have streams = N, at least 2, with objective = "throughput"')
        if self.objective == "latency" and self.streams > 1:
            raise ValueError('must have objective = "throughput" with streams above 1')
        return self


class Publish(Section):
    """What becomes of publications: `keep` generations of each stay on the disk, at least two; manifests are
    signed with the private key in the file `sign_key`."""

    keep: Annotated[int, Field(ge=1, le=1_000_000)] = 5
    sign_key: ConfigPath | None = None


class EngineSettings(Section):
    """What the backend is told besides the route: custom-op libraries, the devices, limits.

    Everything below `device` is TensorRT's. `memory_pools` are limits in MiB by pool ("workspace").
    `shape_values` bounds the values of inputs that shapes depend on. `compute_capabilities` ("8.9") is for
    TensorRT-RTX, which can build for GPUs that are not there.
    """

    plugins: Annotated[tuple[ConfigPath, ...], BeforeValidator(_several)] = ()
    device: str = "auto"
    memory_pools: dict[Text, Positive] = Field(default_factory=dict)
    shape_values: dict[Text, ShapeRange] = Field(default_factory=dict)
    hardware_compatibility: Literal["none", "ampere_plus", "same_compute_capability"] = "none"
    version_compatible: bool = False
    compute_capabilities: Annotated[tuple[Capability, ...], BeforeValidator(_several)] = ()

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        check_devices(value)
        return value

    def as_settings(self) -> dict[str, Any]:
        """The settings as a `BuildOrder` takes them: plain JSON, paths absolute."""
        return {"plugins": [str(path) for path in self.plugins]} | self.limits()

    def limits(self) -> dict[str, Any]:
        """The settings that differ from their defaults, but for plugins and device; plain JSON."""
        told = self.model_dump(mode="json", exclude_defaults=True, exclude={"plugins", "device"})
        # A dict of our own: its order must not count.
        return dict(sorted(told.items()))


class Target(Section):
    """One target file. `path` is where it was read from; every other path is absolute."""

    schema_: int = Field(alias="schema")
    name: str
    model: ConfigPath
    backend: str = "auto"
    shapes: dict[str, ShapeRange] | None = None
    profiles_: tuple[Profile, ...] | None = Field(default=None, alias="profiles")
    reference: Reference = Field(default_factory=Reference)
    accuracy: Accuracy = Field(default_factory=Accuracy)
    search: Search
    budget: Budget = Field(default_factory=Budget)
    timing: Timing = Field(default_factory=Timing)
    engine: EngineSettings = Field(default_factory=EngineSettings)
    publish: Publish = Field(default_factory=Publish)
    quantization: Quantization = Field(default_factory=Quantization)
    _file: Path = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        self._file = context["path"]

    @field_validator("schema_")
    @classmethod
    def _known_schema(cls, value: int) -> int:
        if value != 1:
            raise ValueError("must be 1, the only schema this version reads")
        return value

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if not NAME.fullmatch(value) or len(value) > 100:
            raise ValueError(
                "must be 1 to 100 letters, digits, '.', '_', '-', beginning with a letter or digit"
            )
        return value

    @field_validator("backend")
    @classmethod
    def _known_backend(cls, value: str) -> str:
        if value not in ("auto", "onnxruntime", "tensorrt") and not CLASS.fullmatch(value):
            raise ValueError('must be "auto", "onnxruntime", "tensorrt" or your own, as "module:Class"')
        return value

    @model_validator(mode="after")
    def _one_way_to_give_shapes(self) -> Target:
        if self.shapes is not None and self.profiles_ is not None:
            raise ValueError("must have either [shapes] (one profile) or [[profiles]], not both")
        return self

    @model_validator(mode="after")
    def _labels_for_accuracy(self) -> Target:
        if self.accuracy.metric == "accuracy_drop" and self.reference.labels is None:
            raise ValueError(
                'accuracy.metric = "accuracy_drop" needs reference.labels, the array of right answers in the '
                "npz files of reference.inputs"
            )
        return self

    @property
    def path(self) -> Path:
        """The target file itself."""
        return self._file

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The profiles as written; empty where the file gives no shapes at all."""
        if self.profiles_ is not None:
            return self.profiles_
        return () if self.shapes is None else (Profile(shapes=self.shapes),)

    def run_settings(self) -> dict[str, Any]:
        """The settings with which engines are loaded to be timed; plain JSON."""
        graph = {"cuda_graph": True} if self.timing.cuda_graph else {}
        return self.engine.as_settings() | graph

    @property
    def timed_profile(self) -> int:
        """Index of the profile whose opt shape is timed: the heaviest, the first of equals."""
        weights = [profile.weight for profile in self.profiles] or [1.0]
        return weights.index(max(weights))


def load_target(path: str | Path) -> Target:
    """Read and validate a target file.

    Raises:
        BadInput: the file cannot be read, is not TOML, or a field is not as it must be. The message names the
            file and, for every wrong field, its dotted name, the value found and what is allowed.
    """
    path = Path(path)
    try:
        str(path.absolute()).encode()  # Prefect and the store keep it as text
        text = read_bounded(path, "target file", TEXT).decode("utf-8")
    except UnicodeEncodeError:
        raise BadInput(f"the path of target file {str(path)!r} is not UTF-8: rename what is not") from None
    except FileNotFoundError:
        raise BadInput(f"target file {path} does not exist") from None
    except IsADirectoryError:
        raise BadInput(f"target {path} is a folder; name a target file in it") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"target file {path} is not TOML: byte {error.start} is not UTF-8") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"target file {path} cannot be read: {error}") from None
    if _MANY_PARTS.search(text):
        raise BadInput(f"target file {path} is nested too deeply")
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise BadInput(f"target file {path} is nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError names line and column
        raise BadInput(f"target file {path} is not valid TOML: {error}") from None
    return parse_target(data, path)


def parse_target(data: Mapping[str, Any], path: str | Path) -> Target:
    """The target that `data`, read from TOML, describes; `path` is where it came from.

    Raises:
        BadInput: as `load_target`.
    """
    path = Path(path).absolute()
    context = {"path": path, "folder": path.parent}
    try:
        return Target.model_validate(_tuples(data), context=context)
    except ValidationError as error:
        raise BadInput(explain(error.errors(include_url=False), path, Target)) from None
    except RecursionError:
        raise BadInput(f"target file {path} is nested too deeply") from None


def _tuples(value: Any) -> Any:
    """Lists as tuples, since strict validation refuses a list where the frozen models hold a tuple."""
    if isinstance(value, Mapping):
        return {key: _tuples(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(_tuples(item) for item in value)
    return value
