"""What a run tells of itself, from trials whose figures are known."""

from __future__ import annotations

import pytest
from routetune.tasks.report.explanation import explained
from routetune.tasks.routes.knob import Knob, KnobDatabase
from routetune.tasks.routes.route import Route
from routetune.tasks.routes.space import open_space
from routetune.tasks.trial import Trial

DATABASE = KnobDatabase("1", [Knob(name, ("on", "off"), "on") for name in ("-fixed", "-a", "-b")])
EFFECTS = {"-fixed": 0.5, "-a": 1.1, "-b": 1.05}


def trial(route: Route) -> Trial:
    speed = 1.0
    for name, _ in route.settings:
        speed *= EFFECTS[name]
    return Trial(route, accepted=True, speed=speed, low=speed * 0.995, high=speed * 1.005)


@pytest.mark.parametrize("fixed", ["on", "off"])
def test_what_the_expression_fixes_does_not_count_as_an_effect_of_others(fixed: str) -> None:
    """The default route is tried in any case: where it has another value, it tells nothing of this space."""
    space = open_space(f"-fixed={fixed} -a=[on|off] -b=[on|off]", DATABASE)
    trials = [trial(route) for route in dict.fromkeys([Route(), *space])]
    found = {one["knob"]: one for one in explained(trials, space, 0.95)["effects"]}
    assert found.keys() == {"-a", "-b"}
    for name, effect in found.items():
        assert effect["low"] < EFFECTS[name] < effect["high"]
        assert effect["ratio"] == pytest.approx(EFFECTS[name], rel=1e-3)
