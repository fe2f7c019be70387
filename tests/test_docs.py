"""The pages under docs/ say what is true of the code: links, commands, fields, columns, examples."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from pydantic import BaseModel
from routetune.data import folder
from routetune.flows.cli import app
from routetune.tasks.collect import collect
from routetune.tasks.engines.base import BuildOrder, open_backend
from routetune.tasks.publish import manifest
from routetune.tasks.report.metrics import exposition, measured
from routetune.tasks.report.summary import published, trial_summary
from routetune.tasks.retune import Night
from routetune.tasks.routes.route import Route
from routetune.tasks.select import SPARE, Selection
from routetune.tasks.status import Freshness
from routetune.tasks.store import open_store
from routetune.tasks.store.manifests import Publication
from routetune.tasks.store.records import COLUMNS, row
from routetune.tasks.subject import today
from routetune.tasks.targets.changes import compare
from routetune.tasks.targets.schema import Target, parse_target
from routetune.tasks.trial import Failure, Outcome, Trial
from routetune.tasks.verdicts.losses import LOSSES
from routetune.tasks.verdicts.selection import Decision, loads_needed

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), ROOT / "data" / "README.md"]
COMMAND = re.compile(r"(?:(?<![\w./-])|(?<=bin/))routetune ([a-z][a-z-]*)(?![\w.-])([^#&;|]*)")
FENCE = re.compile(r"(?:<!-- (?P<mark>[a-z ]+) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)```", re.DOTALL)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", page.read_text())


def blocks(kind: str, mark: str, *pages: Path) -> list[Any]:
    """The fenced blocks of a kind with the comment `<!-- mark -->` above, as parameters."""
    found = [
        pytest.param(match["text"], id=f"{page.name}-{number}")
        for page in pages
        for number, match in enumerate(FENCE.finditer(page.read_text()))
        if match["kind"] == kind and match["mark"] == mark
    ]
    assert found, f"no {kind} block is marked as {mark}"
    return found


def rows(page: Path, first: str) -> Iterator[list[str]]:
    """The cells of every row of the tables whose head begins with `first`."""
    inside = False
    for line in prose(page).splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells[0] == first:
            inside = True
        elif inside and set(cells[0]) != {"-"}:
            yield cells


def named(cells: list[str]) -> list[str]:
    """What stands in backquotes in the first cell."""
    return re.findall(r"`([^`]+)`", cells[0])


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ +(.+)$", prose(page), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads)
    return set(plain)


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        assert file.is_relative_to(ROOT), f"{page.name}: {target} leaves the project"
        if anchor:
            assert anchor in anchors(file), f"{page.name}: {target}"


@each_page
def test_commands_and_flags_exist(page: Path) -> None:
    text = page.read_text()
    spans = [line for match in FENCE.finditer(text) for line in match["text"].splitlines()]
    spans += re.findall(r"`([^`]+)`", prose(page))
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for span in spans:
        for name, rest in COMMAND.findall(span):
            assert name in commands, f"{page.name}: there is no command {name!r} in {span!r}"
            known = {option for parameter in commands[name].params for option in parameter.opts}
            flags = re.findall(r"(?<!\S)(--[a-z][a-z-]*)", re.split(r"(?<!\S)--(?!\S)", rest)[0])
            assert set(flags) <= known, f"{page.name}: {span!r}"


def test_every_page_is_listed() -> None:
    listed = set(re.findall(r"\]\(([a-z]+\.md)\)", (DOCS / "README.md").read_text()))
    assert listed == {page.name for page in DOCS.glob("*.md")} - {"README.md"}


@pytest.mark.parametrize("text", blocks("toml", "complete", DOCS / "targets.md"))
def test_complete_targets_load(text: str, tmp_path: Path) -> None:
    parse_target(tomllib.loads(text), tmp_path / "target.toml")


@pytest.mark.parametrize("page", [DOCS / "targets.md", DOCS / "routes.md"], ids=lambda page: page.name)
def test_toml_is_toml(page: Path) -> None:
    for match in FENCE.finditer(page.read_text()):
        if match["kind"] == "toml":
            tomllib.loads(match["text"])


FIELDS = {named(cells)[0]: cells for cells in rows(DOCS / "targets.md", "field")}


def schema_fields() -> dict[str, Any]:
    """Every field of the target file by its dotted name, as pydantic's FieldInfo.

    A kind of table that occurs a second time counts as one field there.
    """
    found: dict[str, Any] = {}
    seen: set[type] = set()

    def walk(model: type[BaseModel], prefix: str) -> None:
        seen.add(model)
        for name, field in model.model_fields.items():
            path = f"{prefix}{field.alias or name}".replace("outputs.<input>", "outputs.<output>")
            kind, suffix = _inner(field.annotation)
            if kind is None or kind in seen:
                found[path] = field
            else:
                walk(kind, path + suffix)

    walk(Target, "")
    return found


def _inner(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """The model that an annotation holds, and how its fields are written behind the name."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, "."
    for argument in typing.get_args(annotation):
        kind, suffix = _inner(argument)
        if kind is not None:
            around = typing.get_origin(annotation)
            inner = {dict: ".<input>.", tuple: "[]."}.get(around, suffix)  # type: ignore[call-overload]
            assert around in (dict, tuple, types.UnionType, typing.Union)
            return kind, inner
    return None, ""


def test_the_field_tables_name_the_fields_of_the_schema() -> None:
    assert set(FIELDS) == set(schema_fields())


@pytest.mark.parametrize("name", FIELDS)
def test_defaults_are_those_of_the_schema(name: str) -> None:
    field, told = schema_fields()[name], FIELDS[name][2]
    if field.is_required():
        assert told == "required"
    elif (default := field.get_default(call_default_factory=True)) is None:
        assert told == "none"
    else:
        written = tomllib.loads(f"value = {told.strip('`')}")["value"]
        assert written == (list(default) if isinstance(default, tuple) else default)


#: Where a field of the file is in the bound-to dict, when not under its own name.
BOUND = {
    "schema": None,
    "name": None,
    "publish.keep": None,
    "publish.sign_key": None,
    "backend": "environment.backend",
    "engine.device": "environment.device",
    "profiles[].weight": "target.timing.profile",
    "profiles[].shapes": "target.profiles.0.x",
}


@pytest.mark.parametrize("name", FIELDS)
def test_costs_are_those_of_the_table_of_changes(name: str) -> None:
    told = FIELDS[name][4]
    place = BOUND.get(name, re.sub(r"^shapes\.<input>", "profiles.0.x", name))
    if place is None:
        assert told in ("", "a new publication")
        return
    parts = place.split(".")
    if parts[0] not in ("target", "environment"):
        parts = ["target", *parts]
    sides: list[dict[str, Any]] = []
    for value in ("old", "new"):
        side: Any = value
        for part in reversed(parts):
            side = {part: side}
        sides.append(side)
    assert [change.cost for change in compare(*sides)] == [told]


def test_records_outcomes_and_losses_are_all_there() -> None:
    assert {name for cells in rows(DOCS / "store.md", "column") for name in named(cells)} == set(COLUMNS)
    assert {name for cells in rows(DOCS / "faults.md", "outcome") for name in named(cells)} == set(Outcome)
    assert [name for cells in rows(DOCS / "verdicts.md", "loss") for name in named(cells)] == list(LOSSES)


def test_the_report_of_a_retune_and_the_metrics(tmp_path: Path) -> None:
    page = DOCS / "freshness.md"
    state = Freshness("digits", "digits.toml", "never tuned")
    night = Night(open_store(tmp_path / "store"), [state])
    fresh = {"state": "fresh", "note": "nothing to do", "speed": None, "counts": {"builds": 0}}
    night.work(state, lambda *_: fresh)
    report = night.report()
    told = {name for cells in rows(page, "field") for name in named(cells)}
    assert told == {*report, *report["targets"][0]}
    text = exposition(measured([state], night.store)).decode()
    families = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    assert {name for cells in rows(page, "metric") for name in named(cells)} == families


def test_the_answer_of_a_collection(tmp_path: Path) -> None:
    open_store(tmp_path / "store")
    answer = collect(tmp_path / "store")
    told = {name for cells in rows(DOCS / "store.md", "field of the answer") for name in named(cells)}
    assert told == set(answer)
    (kinds,) = (
        cells[1] for cells in rows(DOCS / "store.md", "field of the answer") if "collected" in cells[0]
    )
    assert set(re.findall(r"`(\w+)`", kinds)) == {*answer["collected"], "files", "bytes"}


def test_exit_codes_of_a_retune_are_told_alike() -> None:
    """In the same order on the page and in the help, and each is one that it gives."""
    from routetune.flows.commands.retuning import retune

    told = [code for code, *_ in map(named, rows(DOCS / "freshness.md", "code"))]
    text = str(retune.__doc__).partition("Exit codes")[2]
    assert told == re.findall(r"\b\d\b", text) == ["1", "2", "6", "5", "3", "0"]


def test_the_loads_that_a_duel_needs() -> None:
    lines = (DOCS / "verdicts.md").read_text().splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("| finalists |"))
    finalists, _, at_95, at_90 = (
        [cell.strip() for cell in line.split("|")[2:-1]] for line in lines[start : start + 4]
    )
    for told, confidence in ((at_95, 0.95), (at_90, 0.9)):
        assert [int(cell) for cell in told] == [loads_needed(int(k), confidence, SPARE) for k in finalists]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Publication:
    """The default route of the sample `digits`, published in its own store, beside a record with a log."""
    place = tmp_path_factory.mktemp("docs")
    store = open_store(place / "store")
    order = BuildOrder(folder() / "models" / "digits_cnn.onnx", {}, place / "engine.onnx")
    engine = open_backend("onnxruntime").build(order)
    kept = {name: getattr(engine, name) for name in ("digest", "size", "identity", "options")}
    environment = today("onnxruntime", "cpu")
    failure = Failure(Outcome.FAILED, "it did", "build", store.blobs.put_bytes(b"printed"))
    winner, loser = Trial(Route(), engine=kept, accepted=True), Trial(Route((("-a", "b"),)), failure=failure)
    target = parse_target(
        {"schema": 1, "name": "digits", "model": "m.onnx", "search": {"routes": "-a=b"}},
        place / "digits.toml",
    )
    subject = SimpleNamespace(
        target=target,
        backend="onnxruntime",
        device="cpu",
        devices=("cpu",),
        environment=environment,
        bound_to={"target": {}, "environment": dict(environment.fields)},
    )
    run = SimpleNamespace(id="20260101T000000Z-00000000")
    trials = {trial.route.id: trial for trial in (winner, loser)}
    fleet = SimpleNamespace(named=("cpu",), out={})
    bench: Any = SimpleNamespace(subject=subject, run=run, trials=trials, control=winner, fleet=fleet)
    made = manifest(bench, Selection(winner, Decision("", "default", "nothing is faster"), []))
    store.records.append([row(run.id, target.name, environment.key, trial) for trial in (winner, loser)])
    return store.publications.publish("digits", environment.key, store.blobs.put_file(engine.path), made)


def told(section: str) -> set[str]:
    """What stands in backquotes in the first cells of the tables of a section of publications.md."""
    text = (DOCS / "publications.md").read_text().partition(f"\n{section}\n")[2]
    lines = re.split(r"^#+ ", text, maxsplit=1, flags=re.MULTILINE)[0].splitlines()
    return {name for line in lines if line.startswith("|") for name in named(line.split("|")[1:])}


def test_the_tables_of_the_manifest_and_of_answers(digits: Publication) -> None:
    assert told("## The manifest") == {"check", *digits.manifest}
    assert told("### A trial") == set(trial_summary(Trial(Route())))
    more = {"state", "search", "explanation", "trials", "devices", "note", "changes", "detail"}
    assert told("### tune and show") == {*published(digits), *more}
    states = {"fresh", "stale", "reselect", "never tuned", "failed", "cannot tell", "refused"}
    assert told("### status") == {*Freshness("digits", "digits.toml", "fresh").to_json(), *states}


@pytest.mark.parametrize("text", blocks("python", "tried", *sorted(DOCS.glob("*.md"))))
def test_examples_run_as_they_stand(text: str, digits: Publication, tmp_path: Path) -> None:
    script = tmp_path / "service.py"
    script.write_text(text)
    store = digits.engine.parents[5]
    process = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"ROUTETUNE_STORE": str(store)},
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    wanted = "{'logits': (1, 10)}\n" if "load_current" in text else "-a=b" if "log" in text else "'failed'"
    assert wanted in process.stdout, process.stdout


def test_every_case_of_the_list_has_its_tests_and_they_name_it() -> None:
    listed = list(rows(ROOT / "tests/cases.md", "id"))
    assert len(listed) == len({case for case, *_ in listed}) == 34
    for case, report, _, tests in listed:
        assert re.search(r"#\d+$", report), case
        for one in tests.split(", "):
            path, _, name = one.partition("::")
            text = (ROOT / "tests" / path).read_text()
            assert f"def {name}(" in text, f"{case}: there is no {one}"
            assert re.search(rf"(\b|_){case}(\b|_)", text, re.IGNORECASE), f"{one} does not name {case}"


def test_the_readme_counts_faults_as_the_suite_did() -> None:
    faults = json.loads((ROOT / "tests/benchmarks/results/faults.json").read_text())["faults"].values()
    times = sum(fault["times"] for fault in faults)
    assert f"{len(faults)} kinds of fault, injected {times} times" in (ROOT / "README.md").read_text()
    assert not any(fault[kind] for fault in faults for kind in ("lost", "wrong", "hung"))
