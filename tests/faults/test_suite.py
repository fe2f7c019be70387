"""The fault suite: each fault injected into a real tune, and the same three questions asked after it.

All of it: `pytest -m faults tests/faults`. What runs for every change carries `slow` besides.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.faults.fault import Case, Fault, Undisturbed
from tests.faults.questions import snapshot, wrong
from tests.faults.site import Site
from tests.faults.table import BEGIN, END, FAULTS, PAGE, described, note, read, table
from tests.faults.trials import TRIALS, inject_all


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, prefect_url: str) -> Undisturbed:
    site = Site(tmp_path_factory.mktemp("undisturbed"), prefect_url)
    log = site.folder / "steps"
    began = time.monotonic()
    with site.running(stop={"log": str(log)}) as tune:
        ended = tune.wait()
    seconds = time.monotonic() - began
    assert ended.code == 0, ended.err
    verdicts = {trial["route"]: trial["outcome"] for trial in ended.summary["trials"]}
    assert sorted(verdicts.values()) == ["eligible", "eligible", "inaccurate", "inaccurate"], verdicts
    assert not wrong(site, verdicts, ended)
    return Undisturbed(site, verdicts, tuple(log.read_text().splitlines()), seconds)


def parameters() -> list[object]:
    marks = {True: [pytest.mark.slow], False: []}
    return [pytest.param(fault, id=fault.name, marks=marks[fault.usual]) for fault in FAULTS]


@pytest.mark.faults
@pytest.mark.parametrize("fault", parameters())
def test_nothing_is_lost_nothing_is_wrong_nothing_hangs(
    fault: Fault, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    case = Case(tmp_path, undisturbed)
    fault.inject(case)
    assert case.findings.times > 0
    note(fault.name, case.findings)
    assert not case.findings.problems


@pytest.mark.faults
def test_what_is_made_again_is_found(undisturbed: Undisturbed, tmp_path: Path) -> None:
    """The question itself, put to a tune that was told to answer nothing from the store."""
    case = Case(tmp_path, undisturbed)
    site = case.tuned()
    before = snapshot(site)
    case.conclude(site, before, "--refresh")
    for route in undisturbed.verdicts:
        assert any(f"route {route!r}: " in one and "was made again" in one for one in case.findings.lost)
    assert any("entry" in one for one in case.findings.lost)
    assert not case.findings.wrong and not case.findings.hung


@pytest.mark.faults
@pytest.mark.slow
def test_faults_inside_trials(undisturbed: Undisturbed, tmp_path: Path) -> None:
    each = inject_all(Case(tmp_path, undisturbed))
    for name, findings in each.items():
        note(name, findings)
    assert len(each) == len(TRIALS)
    assert not {name: findings.problems for name, findings in each.items() if findings.problems}


def test_the_table_of_the_docs_is_that_of_the_results_and_all_of_it_is_zero() -> None:
    page = PAGE.read_text()
    assert page.split(BEGIN)[1].split(END)[0] == table()
    rows = read()["faults"]
    assert rows.keys() == described().keys() and len(rows) >= 25
    for name, row in rows.items():
        assert row["times"] > 0 and (row["lost"], row["wrong"], row["hung"]) == (0, 0, 0), name
