"""TensorRT's knobs: the library's own database of compiler knobs, and builder settings as `+name`.

Builder settings come from our table, as far as the installed version has them; their defaults are read from
a fresh builder configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from routetune.tasks.engines.base import BuildError
from routetune.tasks.engines.tensorrt.library import NO_TUNER, is_rtx, library, log
from routetune.tasks.errors import BadInput
from routetune.tasks.routes.knob import Knob, KnobDatabase

SWITCH = ("on", "off")
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Setting:
    """One builder setting.

    Attributes:
        name: without its sign.
        attribute: of IBuilderConfig: a number, or a member of `enum`; or, for place "flag", the BuilderFlag.
        values: None for a number of any size.
        auto: the number that TensorRT itself means by "you decide", written AUTO in a route; None: none.
        enum: the enumeration whose members, in lower case, are the values.
        place: "attribute" or "flag".
    """

    name: str
    attribute: str
    help: str
    values: tuple[str, ...] | None = None
    auto: int | None = None
    enum: str = ""
    place: str = "attribute"


SETTINGS = (
    Setting(
        "builder_optimization_level",
        "builder_optimization_level",
        "How long the builder searches; 5 compares the most kernels.",
        tuple("012345"),
    ),
    Setting(
        "tiling_optimization_level",
        "tiling_optimization_level",
        "How hard the builder looks for tilings of several layers.",
        ("none", "fast", "moderate", "full"),
        enum="TilingOptimizationLevel",
    ),
    Setting(
        "l2_limit_for_tiling",
        "l2_limit_for_tiling",
        "Bytes of L2 cache that tilings aim for; auto leaves it to the builder.",
        auto=0,
    ),
    Setting(
        "max_aux_streams",
        "max_aux_streams",
        "Streams beside the main one; 0 keeps the engine on one stream.",
        (AUTO, *"01234567"),
        auto=-1,
    ),
    Setting(
        "max_num_tactics",
        "max_num_tactics",
        "Tactics that are timed where there is a choice; auto leaves it to the builder.",
        auto=-1,
    ),
    Setting(
        "avg_timing_iterations",
        "avg_timing_iterations",
        "Runs over which a tactic's time is averaged.",
        ("1", "2", "4", "8", "16"),
    ),
    Setting("tf32", "TF32", "TensorFloat-32 in float32 layers. May change results.", SWITCH, place="flag"),
    Setting(
        "sparse_weights",
        "SPARSE_WEIGHTS",
        "Kernels for weights with 2:4 structured sparsity, where they are.",
        SWITCH,
        place="flag",
    ),
)
#: Families with one on|off knob for each member of an enumeration.
TACTIC_SOURCE, PREVIEW = "+tactic_source:", "+preview:"


@cache
def knob_database() -> KnobDatabase:
    """Compiler knobs first, then builder settings.

    Raises:
        BadInput: the library cannot be imported, or no builder can be made (no GPU, no driver).
    """
    builder = new_builder()
    config = builder.create_builder_config()
    settings = [*_settings(config), *_members(config)]
    text = config.all_build_routes
    if not text.strip():
        return KnobDatabase(_version(), settings, notes={"-": NO_TUNER})
    return KnobDatabase.from_json(text).merged(KnobDatabase("", settings))


def new_builder() -> Any:
    """A builder. Raises BadInput when TensorRT makes none."""
    trt = library()
    try:
        builder = trt.Builder(log())
    except Exception as error:
        builder, said = None, str(error)
    else:
        said = log().take()
    if builder is None:
        raise BadInput(
            f"TensorRT {trt.__version__} makes no builder: {said}; is there a GPU, and its driver?"
        )
    return builder


def check_route(route: Mapping[str, str]) -> None:
    """Refuse what is not in the database. Raises BadInput."""
    database = knob_database()
    for name, value in route.items():
        database[name].check(value)


def compiler_route(route: Mapping[str, str]) -> str:
    """The part of a route that is TensorRT's build route, as it wants it written."""
    return " ".join(f"{name}={value}" for name, value in route.items() if name.startswith("-"))


def apply_settings(config: Any, route: Mapping[str, str]) -> None:
    """Set every builder setting, those at their default too: other tools' defaults are not TensorRT's."""
    trt = library()
    values = {name: knob.default for name, knob in knob_database().items() if name[0] == "+"}
    values |= {name: value for name, value in route.items() if name[0] == "+"}
    for setting in SETTINGS:
        value = values.get(f"+{setting.name}")
        if value is not None:
            _set(config, setting, value)
    sources = _chosen(TACTIC_SOURCE, trt.TacticSource, values)
    if sources:
        config.set_tactic_sources(sum(1 << int(member) for member, on in sources if on))
    for feature, on in _chosen(PREVIEW, trt.PreviewFeature, values):
        config.set_preview_feature(feature, on)


def _set(config: Any, setting: Setting, value: str) -> None:
    trt = library()
    if setting.place == "flag":
        flag = trt.BuilderFlag.__members__[setting.attribute]
        (config.set_flag if value == "on" else config.clear_flag)(flag)
        return
    new: Any = setting.auto if value == AUTO and setting.auto is not None else value
    if setting.enum:
        new = getattr(trt, setting.enum).__members__[value.upper()]
    elif value != AUTO:
        try:
            new = int(value)
        except ValueError:
            raise BadInput(
                f"knob +{setting.name} must be a whole number or {AUTO}, found {value!r}"
            ) from None
    if _read(config, setting) == value:  # some numbers that can be read cannot be set, such as "auto" itself
        return
    setattr(config, setting.attribute, new)
    found = _read(config, setting)
    if found != value:
        raise BuildError(f"knob +{setting.name}: TensorRT took {found} in place of {value}")


def _read(config: Any, setting: Setting) -> str:
    """A setting's value in a configuration, as a route writes it."""
    trt = library()
    if setting.place == "flag":
        return "on" if config.get_flag(trt.BuilderFlag.__members__[setting.attribute]) else "off"
    value = getattr(config, setting.attribute)
    if setting.enum:
        return str(value.name).lower()
    return AUTO if setting.auto is not None and int(value) == setting.auto else str(int(value))


def _settings(config: Any) -> Iterable[Knob]:
    trt = library()
    for setting in SETTINGS:
        known = (
            setting.attribute in trt.BuilderFlag.__members__
            if setting.place == "flag"
            else hasattr(config, setting.attribute)
        )
        if known:
            hint = "" if setting.values else "int64_t"
            yield Knob(f"+{setting.name}", setting.values, _read(config, setting), setting.help, hint)


def _members(config: Any) -> Iterable[Knob]:
    trt = library()
    sources = int(config.get_tactic_sources())
    for name, member in trt.TacticSource.__members__.items():
        default = "on" if sources >> int(member) & 1 else "off"
        yield Knob(f"{TACTIC_SOURCE}{name.lower()}", SWITCH, default, "Tactics of this library.")
    for name, member in trt.PreviewFeature.__members__.items():
        default = "on" if config.get_preview_feature(member) else "off"
        yield Knob(f"{PREVIEW}{name.lower()}", SWITCH, default, "A preview feature. May change results.")


def _chosen(family: str, enum: Any, values: Mapping[str, str]) -> list[tuple[Any, bool]]:
    return [
        (member, values[f"{family}{name.lower()}"] == "on")
        for name, member in enum.__members__.items()
        if f"{family}{name.lower()}" in values
    ]


def _version() -> str:
    return f"{'TensorRT-RTX' if is_rtx() else 'TensorRT'} {library().__version__}, no tuner"
