"""Many knobs at once, in groups; groups that fail or harm are split down to the knob that does it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from routetune.tasks.routes.expression import Term
from routetune.tasks.routes.space import RouteSpace
from routetune.tasks.search.base import Staged
from routetune.tasks.search.guided import Guided

if TYPE_CHECKING:
    from routetune.tasks.routes.route import Route
    from routetune.tasks.trial import Trial

#: A group that loses more than this share of the speed is split; less is taken for noise.
MARGIN = 0.015
#: Effects below this, as logs, are taken for noise where they are the difference of several measurements.
SMALL = 0.02
#: The first group holds one in so many changes; the next ones grow with success.
FIRST_SHARE = 8
#: Changes that failed are tried in pairs while there are at most this many.
MAX_PAIRED = 6
#: Knobs that are combined freely at the end, the most effective ones first.
MAX_COMBINED = 10

Assignment = dict[str, str]
#: Asks for one assignment at a time and gets what became of it; None where it cannot be tried.
Asking = Generator[Assignment, "Trial | None", None]


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """One knob at another value than its default."""

    knob: str
    value: str


@dataclass(frozen=True, slots=True)
class Part:
    """Changes in the base that have an effect as a whole: the log of what they multiply the speed by."""

    steps: tuple[Step, ...]
    effect: float

    @property
    def urgency(self) -> tuple[bool, int]:
        """The smaller the sooner: what harms first, then large groups, which have more to hide."""
        return self.effect >= 0, -len(self.steps)


class Screening(Staged):
    """Group testing (Dorfman 1943; adaptive splitting after Hwang 1972), for many knobs of which few matter.

    1. Where the default is not eligible, ever smaller groups are tried until one makes an eligible base.
    2. Groups of changes are put on top of the base. What does no harm stays, so that changes which only help
       together meet; a group that fails or harms is halved until the change to blame is found.
    3. Groups that gained as a whole may hide a change that harms: they are halved down to single changes. One
       half is taken away and measured, the other one's effect is what is left of the whole.
    4. Changes to blame are tried once more on top of all that stayed.
    5. What made no difference is taken away again; what does then is found by halving.
    6. Changes to blame are tried in pairs, while they are few.
    7. A `Guided` search combines the knobs that made a difference.
    """

    name = "screening"

    def __init__(self, space: RouteSpace, seed: int = 0) -> None:
        super().__init__(space)
        self.seed = seed
        self.base: Assignment | None = None
        self.base_speed = 0.0
        self._bases = 0
        self.blamed: list[Step] = []
        self._gained: list[Part] = []
        self.helped: list[Step] = []
        self.total: int | None = None

    def _stages(self) -> Iterator[Iterable[Route]]:
        phases = (self._find_base, self._grow, self._sift, self._try_again, self._prune, self._try_pairs)
        for phase in phases:
            asking, answer = phase(), None
            try:
                assignment = next(asking)
                while True:
                    if self._offers(assignment):
                        route = self.space.route(assignment)
                        yield [route]
                        answer = self._told.get(route)
                    else:
                        answer = None
                    assignment = asking.send(answer)
            except StopIteration:
                pass
        yield from self._combined()
        self.total = len(self._asked)

    def _offers(self, assignment: Assignment) -> bool:
        """Whether the expression lists these values (or they are defaults) and no rule excludes them."""
        return self.space.route_of(assignment) is not None

    def _speed(self, trial: Trial | None) -> float:
        """The speed of what may win, else 0."""
        if trial is None or not trial.eligible or trial.speed is None or not math.isfinite(trial.speed):
            return 0.0
        return trial.speed

    def _layers(self) -> list[list[Step]]:
        """The changes in layers, each with one value of each knob at most."""
        layers: list[list[Step]] = []
        for term in self.space.terms:
            others = [v for v in term.values if v != term.knob.default] if term.variable else []
            for depth, value in enumerate(others):
                layers += [[]] if depth == len(layers) else []
                layers[depth].append(Step(term.knob.name, value))
        return layers

    def _find_base(self) -> Asking:
        """Breadth first through halves, quarters, ... of the changes, until something is eligible."""
        default = self.space.baseline()
        groups: list[Sequence[Step]] = [[]]
        layers = self._layers()
        while groups:
            group, *groups = groups
            trial = yield with_steps(default, group)
            if self._speed(trial):
                self._settle(with_steps(default, group), self._speed(trial))
                return
            groups += (
                halves(group) if group else [half for layer in layers for half in halves(layer) or [layer]]
            )

    def _grow(self) -> Asking:
        for layer in self._layers():
            left = [step for step in layer if self.base is not None and self.base[step.knob] != step.value]
            yield from self._put_on(left, max(1, len(left) // FIRST_SHARE))

    def _put_on(self, left: Sequence[Step], size: int) -> Asking:
        """Put all that does no harm on top of the base, in groups of `size` at first."""
        while left:
            group, left = left[:size], left[size:]
            if (yield from self._stays(group)):
                size *= 2
                continue
            # Hwang's splitting: find one change to blame, and put the untested rest back.
            suspects = group
            while len(suspects) > 1:
                half, rest = halves(suspects)
                if (yield from self._stays(half)):
                    suspects = rest
                else:
                    suspects, left = half, [*rest, *left]
            self.blamed += suspects
            size = max(1, size // 2)

    def _stays(self, group: Sequence[Step]) -> Generator[Assignment, Trial | None, bool]:
        """Try a group on top of the base; it becomes part of it unless it fails or harms."""
        assert self.base is not None
        changed = with_steps(self.base, group)
        speed = self._speed((yield changed))
        if speed < self.base_speed * (1 - MARGIN):
            return False
        if speed > self.base_speed * (1 + MARGIN):
            self._gained.append(Part(tuple(group), math.log(speed / self.base_speed)))
        self._settle(changed, speed)
        return True

    def _settle(self, changed: Assignment, speed: float) -> None:
        """A new base. Its speed is the mean of all since the last gain, of which the best is just lucky."""
        self._bases = 1 if speed > self.base_speed * (1 + MARGIN) else self._bases + 1
        self.base_speed += (speed - self.base_speed) / self._bases
        self.base = changed

    def _try_again(self) -> Asking:
        """What failed beside a part of the others may be the best beside all of them."""
        for step in self.blamed if self.base is not None else ():
            yield from self._stays([step])

    def _try_pairs(self) -> Asking:
        """What fails alone may be the best beside another that does."""
        base = self.base or {}
        left = [step for step in self.blamed if base and base[step.knob] != step.value]
        for one, other in combinations(left if len(left) <= MAX_PAIRED else [], 2):
            if one.knob != other.knob:
                yield from self._stays([one, other])

    def _sift(self) -> Asking:
        """Find the single changes behind the gains of groups, and those that harm among them."""
        queue = [(part.urgency, at, part) for at, part in enumerate(self._gained)]
        heapq.heapify(queue)
        at = len(queue)
        while queue and self.base is not None:
            part = heapq.heappop(queue)[-1]
            if part.effect < -SMALL:
                yield from self._take_away(part.steps)
            elif len(part.steps) == 1:
                self.helped += part.steps
            else:
                for half in (yield from self._halved(part)):
                    heapq.heappush(queue, (half.urgency, at := at + 1, half))

    def _halved(self, part: Part) -> Generator[Assignment, Trial | None, list[Part]]:
        """The halves of a part of the base that matter; only the first one's effect is measured."""
        assert self.base is not None
        default, (one, other) = self.space.baseline(), halves(part.steps)
        without = self.base | {step.knob: default[step.knob] for step in one}
        speed = self._speed((yield without))
        effect = math.log(self.base_speed / speed) if speed else part.effect
        if effect < -SMALL and len(one) == 1:
            self._settle(without, speed)
        found = [Part(tuple(one), effect), Part(tuple(other), part.effect - effect)]
        return [half for half in found if abs(half.effect) > SMALL and set(half.steps) <= self._on()]

    def _on(self) -> set[Step]:
        return {Step(knob, value) for knob, value in (self.base or {}).items()}

    def _take_away(self, steps: Sequence[Step]) -> Asking:
        """Take away what harms as a whole, and put back what does not."""
        assert self.base is not None
        default = self.space.baseline()
        without = self.base | {step.knob: default[step.knob] for step in steps}
        speed = self._speed((yield without))
        if speed <= self.base_speed:
            return
        self._settle(without, speed)
        if len(steps) == 1:
            self.blamed += steps
        else:
            yield from self._put_on(steps, len(steps) // 2)

    def _prune(self) -> Asking:
        """Take changes away in groups: those without effect go for good, the others end up in `helped`."""
        if self.base is None:
            return
        default = self.space.baseline()
        kept = [step for step in self._on() if step.value != default[step.knob] and step not in self.helped]
        groups = [sorted(kept)] if kept else []
        while groups:
            group, *groups = groups
            without = self.base | {step.knob: default[step.knob] for step in group}
            speed = self._speed((yield without))
            if speed >= self.base_speed * (1 - MARGIN):
                self._settle(without, speed)
            elif len(group) > 1:
                groups += halves(group)
            else:
                self.helped += group

    def _combined(self) -> Iterator[Iterable[Route]]:
        if self.base is None:
            return
        steps = [*self.helped, *self.blamed]
        names = list(dict.fromkeys(step.knob for step in steps))[:MAX_COMBINED]
        terms = [
            Term(term.knob, term.values, term.variable)
            if term.knob.name in names
            else Term(term.knob, (self.base[term.knob.name],), False)
            for term in self.space.terms
        ]
        inner = Guided(RouteSpace(terms, self.space.database, self.space.exclude), self.seed)
        while True:
            inner.tell(list(self._told.values()))
            if (route := inner.choose()) is None:
                return
            yield [route]

    def explain(self) -> str:
        knobs = sum(term.variable for term in self.space.terms)
        if self.base is None:
            return f"{self.name}: {knobs} variable knobs in groups, split where a group fails or harms"
        return (
            f"{self.name}: of {knobs} variable knobs {len(self.helped)} matter, {len(self.blamed)} changes "
            "fail or harm by themselves"
        )


def with_steps(assignment: Assignment, steps: Iterable[Step]) -> Assignment:
    return assignment | {step.knob: step.value for step in steps}


def halves(steps: Sequence[Step]) -> list[list[Step]]:
    """Both halves of a list; a single step has none."""
    middle = len(steps) // 2
    return [list(steps[:middle]), list(steps[middle:])] if middle else []
