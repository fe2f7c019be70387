"""Synthetic landscapes with the make of what was seen on GPUs. Invented: no figure is an engine's.

A draw is a model of one of ten families, a space of 64 to 128 routes, and a tolerance. The time of a route
comes from two clocks, the host's that launches kernels and the device's that computes; without a CUDA graph
the slower of them shows, so that what a knob does to the device is hidden where the host is slow. Or, in
other styles, effects just multiply. What is drawn at random is by how much each knob acts.

Taken from what was seen (docs/gpu.md): `use_tf32=0` costs 0 to 55 % and decides what a strict tolerance
allows; `fuse_conv_bias` alone breaks outputs, and beside `prefer_nhwc` is often the fastest; a CUDA graph
gives up to 4x, or does not build; the search `DEFAULT` is up to 100 times slower; many values do nothing, and
then compile to the same engine. The loss of a route is that of its worst part. A search is told speeds with
noise, and judged by those without.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from routetune.tasks.routes.route import Route
from routetune.tasks.trial import Failure, Outcome, Trial

from tests.benchmarks.search.landscape import Landscape, space_of

#: family -> (kind, host time over device time of the default route: least and most).
FAMILIES: dict[str, tuple[str, float, float]] = {
    "resnet50 b1": ("convnet", 0.8, 3.0),
    "resnet50 b8": ("convnet", 0.1, 0.6),
    "efficientnet b8": ("convnet", 0.4, 1.5),
    "mobilenet b1": ("convnet", 1.5, 4.0),
    "unet": ("convnet", 0.1, 1.0),
    "vit": ("transformer", 0.3, 1.3),
    "bert b1": ("transformer", 0.8, 3.0),
    "bert b8": ("transformer", 0.1, 0.8),
    "small encoder": ("transformer", 1.5, 4.0),
    "dlrm": ("mlp", 1.0, 5.0),
}
LEVELS = ("basic", "extended", "all")
FUSIONS = {
    "convnet": ("ConvAddActivationFusion", "ConstantSharing", "TransposeOptimizer"),
    "transformer": (
        "SkipLayerNormFusion",
        "GeluFusion",
        "LayerNormFusion",
        "MatMulAddFusion",
        "BiasGeluFusion",
    ),
    "mlp": ("MatMulAddFusion", "MatmulTransposeFusion", "GemmActivationFusion", "ConcatSliceElimination"),
}


@dataclass(frozen=True)
class Style:
    """How landscapes come about.

    Attributes:
        seed: of the style itself, so that styles have no draw in common.
        sharpness: how sharply the slower clock decides; None where effects multiply instead.
        noise: standard deviation of the log speeds that a search is told.
        size: factor of all logs of effects.
        strange: chance of each oddity that no fact speaks for, such as a fusion that breaks accuracy.
        pairs: pairs of settings with an effect of their own, at most.
    """

    seed: int
    sharpness: tuple[float, float] | None = (3.0, 12.0)
    noise: float = 0.01
    size: float = 1.0
    strange: float = 0.15
    pairs: int = 2


STYLES = {
    "two clocks": Style(1),
    "products": Style(2, sharpness=None, pairs=4),
    "held out": Style(3, sharpness=(2.0, 30.0), noise=0.02, size=1.3, strange=0.3, pairs=5),
}
#: Tolerances of the largest difference beside the largest value.
LOOSE, STRICT = 2e-3, 1e-5
Setting = tuple[str, str]


def landscapes(style: str, count: int, first: int = 0) -> list[Landscape]:
    """`count` landscapes of a style, by turns loose and strict, of the seeds from `first` on."""
    return [gpu_like(style, seed) for seed in range(first, first + count)]


def gpu_like(style: str, seed: int) -> Landscape:
    """One landscape; of two neighbouring seeds one has a strict tolerance."""
    rng = np.random.default_rng([STYLES[style].seed, seed])
    family = str(rng.choice(list(FAMILIES)))
    model = _Model(STYLES[style], family, strict=bool(seed % 2), rng=rng)
    space = space_of(model.knobs)
    routes = list(dict.fromkeys([Route(), *space]))
    found: dict[Route, Trial] = {}
    truth: dict[Route, float] = {}
    engines: dict[frozenset[Setting], Trial] = {}
    for route in routes:
        values = {k["name"]: route.as_dict().get(k["name"], k["default"]) for k in model.knobs}
        engine = model.engine(values)
        first = engines.get(engine)
        speed = model.speed(dict(engine))
        found[route] = model.trial(route, dict(engine), speed, first)
        truth[route] = speed
        engines.setdefault(engine, found[route])
    about = {"source": "synthetic", "style": style, "family": family, "strict": model.strict, "seed": seed}
    return Landscape(f"{style} {seed}: {family}", space, found, about, truth)


def with_half(recorded: Landscape, alone: float, beside: float) -> Landscape:
    """A recorded landscape of convolutions, and float16 as one more knob, which is invented.

    Args:
        alone: by what it multiplies the speed of a route.
        beside: the same where `prefer_nhwc` is on.
    """
    half = {"name": "@fp16", "values": ["off", "on"], "default": "off"}
    knobs = [
        {"name": t.knob.name, "values": t.values, "default": t.knob.default} for t in recorded.space.terms
    ]
    space = space_of([*knobs, half], order=[*recorded.space.database, "@fp16"])
    found: dict[Route, Trial] = {}
    for route in dict.fromkeys([Route(), *space]):
        rest = Route(tuple(setting for setting in route.settings if setting[0] != "@fp16"))
        trial = recorded.trials[rest]
        if rest == route:
            found[route] = trial
            continue
        factor = beside if ("-prefer_nhwc", "1") in route.settings else alone
        speeds = {name: (of := getattr(trial, name)) and of * factor for name in ("speed", "low", "high")}
        found[route] = replace(trial, route=route, alias_of=None, **speeds)
    name = f"{recorded.name}, float16 {alone:g} or {beside:g}"
    return Landscape(name, space, found, dict(recorded.about))


class _Model:
    """What a model of a family does under each assignment."""

    def __init__(self, style: Style, family: str, strict: bool, rng: np.random.Generator) -> None:
        self.style, self.family, self.strict, self.rng = style, family, strict, rng
        self.kind, least, most = FAMILIES[family]
        self.knobs = _knobs(self.kind, rng)
        self.host = math.exp(rng.uniform(math.log(least), math.log(most)))
        #: Log factors of the device's and the host's time.
        self.device_logs: dict[frozenset[Setting], float] = {}
        self.host_logs: dict[frozenset[Setting], float] = {}
        self.losses: dict[frozenset[Setting], float] = {}
        self.fails: list[frozenset[Setting]] = []
        self.same: dict[Setting, Setting] = {}
        self._draw_effects()
        self._draw_oddities()
        self.sharp = None if style.sharpness is None else float(rng.uniform(*style.sharpness))
        self.graph_gain = float(rng.uniform(0.0, 1.4)) * min(1.0, self.host)
        self.graph_cost = float(rng.uniform(0.0, 0.05))
        self.base = self._time({k["name"]: k["default"] for k in self.knobs})

    def _has(self, name: str, value: str) -> bool:
        return any(k["name"] == name and value in k["values"] for k in self.knobs)

    def _act(self, *settings: Setting, device: float = 0.0, host: float = 0.0) -> None:
        if all(self._has(*setting) for setting in settings):
            self.device_logs[frozenset(settings)] = device * self.style.size
            self.host_logs[frozenset(settings)] = host * self.style.size

    def _draw_effects(self) -> None:
        rng = self.rng
        tf32, nhwc, fuse = ("-use_tf32", "0"), ("-prefer_nhwc", "1"), ("-fuse_conv_bias", "1")
        self._act(tf32, device=_either(rng, 0.3, (0.0, 0.02), (0.05, 0.8)))
        if self.kind == "convnet":
            self._act(nhwc, device=float(rng.normal(-0.05, 0.25)), host=float(rng.uniform(-0.05, 0.3)))
            self._act(fuse, device=float(rng.normal(0, 0.1)), host=float(rng.normal(0, 0.05)))
            gain = _either(rng, 0.25, (0.0, 0.05), (0.05, 0.9))
            self._act(nhwc, fuse, device=-gain, host=-float(rng.uniform(0.0, 0.4)))
            # Tensor cores want channels last: without TF32 little is left of that.
            self._act(nhwc, tf32, device=float(rng.normal(0.0, 0.15)))
            if rng.random() < 0.9:
                broken = math.inf if rng.random() < 0.5 else _power(rng, -0.5, 2.5)
                self.losses[frozenset({fuse, ("-prefer_nhwc", "0")})] = broken
            algorithm = "-cudnn_conv_algo_search"
            self._act((algorithm, "HEURISTIC"), device=_either(rng, 0.5, (-0.01, 0.01), (-0.03, 0.2)))
            self._act((algorithm, "DEFAULT"), device=_either(rng, 0.5, (0.0, 1.0), (1.0, 4.6)))
        weight = {"convnet": 0.1, "transformer": 0.6, "mlp": 0.15}[self.kind]
        self._act(("-graph_optimization_level", "basic"), device=abs(float(rng.normal(0, weight))),
                  host=abs(float(rng.normal(0, 1.5 * weight))))  # fmt: skip
        self._act(("-graph_optimization_level", "extended"), device=_either(rng, 0.7, (0, 0), (-0.05, 0.1)))
        for knob in self.knobs:
            if knob["name"].removeprefix("-") in FUSIONS[self.kind] and rng.random() < 0.6:
                setting = (knob["name"], "off")
                self._act(setting, device=_either(rng, 0.6, (-0.03, 0.05), (-0.1, 0.25)),
                          host=float(rng.uniform(-0.02, 0.15)))  # fmt: skip
        self._draw_pairs()

    def _draw_pairs(self) -> None:
        steps = [(k["name"], v) for k in self.knobs for v in k["values"] if v != k["default"]]
        for _ in range(int(self.rng.integers(0, self.style.pairs + 1))):
            one, other = (steps[int(at)] for at in self.rng.choice(len(steps), 2, replace=False))
            pair = frozenset((one, other))
            if one[0] != other[0] and pair not in self.device_logs:
                self._act(one, other, device=float(self.rng.normal(0, 0.12)))

    def _draw_oddities(self) -> None:
        rng, often = self.rng, self.style.strange
        steps = [(k["name"], v) for k in self.knobs for v in k["values"] if v != k["default"]]
        quiet = [s for s in steps if frozenset({s}) not in self.device_logs]
        quiet = [s for s in quiet if s[0] not in ("-enable_cuda_graph", "-use_tf32")]
        defaults = {k["name"]: k["default"] for k in self.knobs}
        for name, value in quiet:  # does nothing at all
            if rng.random() < 0.8:
                self.same[name, value] = (name, defaults[name])
        if rng.random() < 0.6 and self._has("-graph_optimization_level", "extended"):
            self.same["-graph_optimization_level", "extended"] = ("-graph_optimization_level", "all")
        self.losses[frozenset({("-use_tf32", "1")})] = _power(rng, -4.3, -3.0)
        least = -4.5 if self.strict else -2.2
        odd = [s for s in steps if s[0] not in ("-enable_cuda_graph", "-use_tf32", "-fuse_conv_bias")]
        pick: Callable[[], Setting] = lambda: odd[int(rng.integers(len(odd)))]  # noqa: E731
        if rng.random() < often * (2 if self.strict else 1):
            self.losses[frozenset({pick()})] = _power(rng, least, 0.5)
        if rng.random() < often:
            self.losses[frozenset({pick(), pick()})] = _power(rng, least, 0.5)
        graph = ("-enable_cuda_graph", "1")
        self.fails += [frozenset({graph})] if rng.random() < 0.5 * often else []
        self.fails += [frozenset({graph, pick()})] if rng.random() < often else []

    def engine(self, values: Mapping[str, str]) -> frozenset[Setting]:
        """What is compiled: values that do nothing are the value that they equal."""
        return frozenset(self.same.get(setting, setting) for setting in values.items())

    def _time(self, values: Mapping[str, str]) -> float:
        held = set(values.items())
        device = math.exp(sum(log for part, log in self.device_logs.items() if part <= held))
        graph = values["-enable_cuda_graph"] == "1"
        if self.sharp is None:
            return float(device * math.exp(-self.graph_gain * self.style.size) if graph else device)
        if graph:
            return float(device * (1 + self.graph_cost))
        host = self.host * math.exp(sum(log for part, log in self.host_logs.items() if part <= held))
        return float((host**self.sharp + device**self.sharp) ** (1 / self.sharp))

    def speed(self, values: Mapping[str, str]) -> float:
        return self.base / self._time(values)

    def trial(self, route: Route, values: Mapping[str, str], speed: float, first: Trial | None) -> Trial:
        """What a search is told of a route; aliases take over what was found of the first."""
        held = set(values.items())
        if any(part <= held for part in self.fails):
            return Trial(route, failure=Failure(Outcome.FAILED, "a node is left to the CPU", "build"))
        if first is not None:
            return replace(first, route=route, alias_of=first.route.id)
        worst = max((loss for part, loss in self.losses.items() if part <= held), default=0.0)
        loss = max(worst * math.exp(self.rng.normal(0, 0.15)), 5e-7 * math.exp(self.rng.normal(0, 0.3)))
        accepted = loss <= (STRICT if self.strict else LOOSE)
        noise = 0.0 if route == Route() else float(self.rng.normal(0, self.style.noise))
        told, width = speed * math.exp(noise), math.exp(1.96 * self.style.noise)
        return Trial(route, accepted=accepted, speed=told, low=told / width, high=told * width, loss=loss)


def _power(rng: np.random.Generator, least: float, most: float) -> float:
    """Ten to a power drawn evenly."""
    return float(10 ** rng.uniform(least, most))


def _either(
    rng: np.random.Generator, chance: float, one: tuple[float, float], other: tuple[float, float]
) -> float:
    """Evenly from the first range with this chance, else from the second."""
    return float(rng.uniform(*(one if rng.random() < chance else other)))


def _knobs(kind: str, rng: np.random.Generator) -> list[dict[str, Any]]:
    """A space of 64 to 128 routes over the knobs that make sense for a kind of model."""
    knobs = [_knob("-use_tf32", "1", "0"), _knob("-enable_cuda_graph", "0", "1")]
    more = [_knob(f"-{name}", "on", "off") for name in FUSIONS[kind]]
    more += [_knob("-enable_mem_pattern", "on", "off"), _knob("-cudnn_conv_use_max_workspace", "1", "0")]
    levels = _knob("-graph_optimization_level", *LEVELS, default="all")
    two = _knob("-graph_optimization_level", "basic", "all", default="all")
    if kind == "convnet":
        knobs += [_knob("-prefer_nhwc", "0", "1"), _knob("-fuse_conv_bias", "0", "1")]
        searches = ("EXHAUSTIVE", "HEURISTIC", "DEFAULT")
        knobs.append(_knob("-cudnn_conv_algo_search", *searches[: int(rng.integers(2, 4))]))
    knobs.append(levels if rng.random() < 0.5 else two)
    rng.shuffle(more)  # type: ignore[arg-type]
    for knob in more:
        if 2 * math.prod(len(k["values"]) for k in knobs) <= 128:
            knobs.append(knob)
    if math.prod(len(k["values"]) for k in knobs) > 128:  # three searches at three levels
        knobs = [two if k is levels else k for k in knobs]
    rng.shuffle(knobs)  # type: ignore[arg-type]
    return knobs


def _knob(name: str, *values: str, default: str = "") -> dict[str, Any]:
    return {"name": name, "values": list(values), "default": default or values[0]}
