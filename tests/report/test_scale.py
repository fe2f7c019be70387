"""The axis of ε keeps the order of losses, and puts every one within its ends."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from routetune.tasks.report.scale import LONGEST, Scale, number_text
from routetune.tasks.verdicts.thresholds import ABOVE_ZERO

LOSSES = st.lists(
    st.one_of(st.sampled_from([0.0, ABOVE_ZERO, math.inf]), st.floats(1e-12, 1e12)), max_size=20
)


@given(LOSSES, st.floats(0, 1e15))
def test_larger_is_never_further_left(losses: list[float], other: float) -> None:
    scale = Scale(losses)
    places = [scale.place(value) for value in sorted({*losses, other, 0.0, math.inf})]
    assert places == sorted(places)
    assert all(scale.ends[0] <= place <= scale.ends[1] for place in places)
    ticks = [place for place, _ in scale.ticks]
    assert ticks == sorted(ticks) and len(ticks) >= 1


def test_empty_decades_are_shortened_and_said_to_be() -> None:
    scale = Scale([0.0, 1e-6, 0.1, 0.2])
    assert scale.place(0.1) - scale.place(1e-6) == LONGEST
    assert len(scale.breaks) == 1 and scale.ticks[0][1] == "0"
    assert not Scale([0.1, 0.2]).breaks
    assert [number_text(value) for value in (0.0, ABOVE_ZERO, 0.25, math.inf)] == ["0", ">0", "0.25", "∞"]
