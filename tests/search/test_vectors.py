"""trtexec's own answers, refusals included; entries with an "ours" key differ on purpose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from routetune.tasks.errors import BadInput
from routetune.tasks.routes.knob import KnobDatabase
from routetune.tasks.routes.route import spell
from routetune.tasks.routes.space import open_space
from routetune.tasks.search import expand, fast, mixed, open_search
from routetune.tasks.trial import Trial

_FILE = json.loads((Path(__file__).parents[1] / "vectors" / "trtexec_routes.json").read_text())
DATABASE = KnobDatabase.from_json(_FILE["database"])
REFUSED = [v for v in _FILE["vectors"] if "ours" not in v and v.get("refused")]
ANSWERED = [v for v in _FILE["vectors"] if "ours" not in v and not v.get("refused")]


def named(vectors: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(vector, id=vector["expr"] or "empty") for vector in vectors]


def test_the_file_is_whole() -> None:
    assert (len(REFUSED), len(ANSWERED), len(_FILE["vectors"])) == (18, 30, 50)


@pytest.mark.parametrize("vector", named(REFUSED))
def test_refusals(vector: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        open_space(vector["expr"], DATABASE)


def test_ours() -> None:
    ours = {vector["ours"]: vector["expr"] for vector in _FILE["vectors"] if "ours" in vector}
    with pytest.raises(BadInput, match="there twice"):
        open_space(ours.pop("refused: the same knob twice"), DATABASE)
    expression = ours.pop("any white space separates: two knobs, 6 routes in full")
    assert not ours
    # The note says 6, but it lists 2 x 2 values, and full never adds a value that is not listed
    # (see -three=[a|c] elsewhere in the file): the product is 4. What it marks, two knobs, holds.
    space = open_space(expression, DATABASE)
    assert [term.knob.name for term in space.terms] == ["-copy_ppg", "-three"]
    assert [spell(assignment) for assignment in space.assignments()] == [
        f"-copy_ppg={copy} -three={three}" for copy in ("on", "off") for three in ("a", "b")
    ]


@pytest.mark.parametrize("vector", named(ANSWERED))
@pytest.mark.parametrize("algorithm", ["fast", "full"])
def test_order(algorithm: str, vector: dict[str, Any]) -> None:
    found = [spell(assignment) for assignment in expand(algorithm, open_space(vector["expr"], DATABASE))]
    assert len(found) == int(vector[f"{algorithm}_count"])
    assert found == vector[algorithm] or (len(found) > 64 and not vector[algorithm])


@pytest.mark.parametrize("vector", named(ANSWERED))
def test_the_second_phase_of_mixed(vector: dict[str, Any]) -> None:
    space = open_space(vector["expr"], DATABASE)
    changes = list(fast.changes(space))
    gains = [mixed.Gain(changes[index - 1].knob, 1.1) for index in vector["mixed_improved_fast_indices"]]
    second = mixed.second_phase(space, gains)
    assert (second is not None) == ("mixed_phase2" in vector)
    if second is not None:
        assert second.size == int(vector["mixed_phase2_count"])
        assert [spell(a) for a in second.assignments()] == vector["mixed_phase2"] or second.size > 64


@pytest.mark.parametrize("vector", named(ANSWERED))
def test_mixed_asks_each_route_of_both_phases_once(vector: dict[str, Any]) -> None:
    space = open_space(vector["expr"], DATABASE)
    parsed = [
        space.route(dict(token.split("=") for token in text.split()))
        for text in [*vector["fast"], *vector.get("mixed_phase2", ())]
    ]
    improved = {parsed[index] for index in vector["mixed_improved_fast_indices"]}
    search = open_search("mixed", space)
    asked = []
    while batch := search.ask(3):
        asked += batch
        search.tell([Trial(r, accepted=True, speed=1.2 if r in improved else 1.0) for r in batch])
    assert asked == list(dict.fromkeys(parsed))
    assert search.total == len(asked)
