"""Main effects recover what was planted, with intervals that cover it as often as they say."""

from __future__ import annotations

import math
import random

import pytest
from routetune.tasks.report.effects import Timed, _student, main_effects

PLANTED = {("-a", "off"): 0.30, ("-b", "2"): -0.20, ("-c", "on"): 0.0, ("-d", "x"): 0.05, ("-e", "on"): 0.0}


def rows(seed: int, count: int, noise: float = 0.01, together: float = 0.0) -> list[Timed]:
    """Random routes under the planted effects; -a and -b besides act together."""
    rng = random.Random(seed)
    found = [Timed({}, 1.0, 1.0, 1.0)]
    for _ in range(count):
        settings = {knob: value for knob, value in PLANTED if rng.random() < 0.5}
        log = sum(PLANTED[pair] for pair in settings.items()) + rng.gauss(0, noise)
        log += together if {"-a", "-b"} <= settings.keys() else 0.0
        found.append(Timed(settings, math.exp(log), math.exp(log - 2 * noise), math.exp(log + 2 * noise)))
    return found


def test_planted_effects_are_covered_as_often_as_the_interval_says() -> None:
    covered = total = 0
    for seed in range(60):
        for effect in main_effects(rows(seed, 16)):
            truth = math.exp(PLANTED[effect.knob, effect.value])
            covered += effect.low <= truth <= effect.high
            total += 1
            assert effect.ratio == pytest.approx(truth, rel=0.1)
    assert total == 60 * len(PLANTED)
    assert 0.9 <= covered / total <= 0.995


def test_the_strongest_come_first_and_only_real_ones_are_clear() -> None:
    effects = main_effects(rows(1, 40))
    assert [effect.knob for effect in effects[:3]] == ["-a", "-b", "-d"]
    assert {effect.knob for effect in effects if effect.clear} == {"-a", "-b", "-d"}


def test_acting_together_widens_the_interval() -> None:
    alone, together = (
        {effect.knob: effect for effect in main_effects(rows(3, 24, together=gain))} for gain in (0.0, 0.8)
    )
    for knob in ("-a", "-b"):
        assert math.log(together[knob].high / together[knob].low) > 5 * math.log(
            alone[knob].high / alone[knob].low
        )


def test_one_off_changes_have_the_interval_of_their_measurement() -> None:
    """No residual is left to tell the scatter; it must not pass for certainty."""
    effects = main_effects([Timed({}, 1.0, 1.0, 1.0), Timed({"-a": "off"}, 1.2, 1.15, 1.25)])
    assert effects[0].ratio == pytest.approx(1.2)
    assert effects[0].low < 1.15 and effects[0].high > 1.25


def test_what_was_only_tried_together_is_not_told_apart() -> None:
    pair = Timed({"-a": "off", "-b": "2"}, 1.3, 1.29, 1.31)
    effects = main_effects([Timed({}, 1.0), pair, Timed({"-c": "on"}, 0.9, 0.89, 0.91)])
    assert [(effect.knob, effect.inseparable) for effect in effects] == [
        ("-c", False),
        ("-a", True),
        ("-b", True),
    ]
    assert not effects[1].clear and effects[1].to_json()["ratio"] == "nan"


def test_speeds_that_are_none_do_not_count() -> None:
    assert main_effects([Timed({"-a": "off"}, math.nan), Timed({"-a": "off"}, 0.0), Timed({}, 1.0)]) == []
    assert main_effects([]) == []


@pytest.mark.parametrize(("degrees", "exact"), [(4, 2.7764), (6, 2.4469), (10, 2.2281), (60, 2.0003)])
def test_quantiles_of_student(degrees: int, exact: float) -> None:
    assert _student(0.95, degrees) == pytest.approx(exact, rel=3e-3)
