"""Texts that a user or another tool wrote: target files, routes, knob databases, tuning logs, stored JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routetune.tasks.report.exchange import import_trials
from routetune.tasks.routes.expression import parse, parse_partial, parse_route, read_expression_file
from routetune.tasks.routes.knob import KnobDatabase
from routetune.tasks.routes.space import open_space
from routetune.tasks.store import open_store
from routetune.tasks.targets.schema import load_target, parse_target

from tests.hostile.bounds import fuzzing, refusal, runs, tree
from tests.hostile.documents import mutations, texts

KNOBS = KnobDatabase.from_json(
    {
        "tuner_version": "1",
        "tuner_options": [
            {"option": "-a", "allowed_values": "-a=[on|off]", "default_value": "on"},
            {"option": "-kgen:b", "allowed_values": "-kgen:b=[0|1|2]", "default_value": "0"},
            {"option": "+c", "allowed_values": "int32_t", "default_value": "1"},
        ],
    }
)
TARGET: dict[str, Any] = {
    "schema": 1,
    "name": "t",
    "model": "m.onnx",
    "backend": "onnxruntime",
    "shapes": {"x": {"min": "1x2", "opt": "2x2", "max": "4x2"}},
    "reference": {"samples": 2, "seed": 3, "ranges": {"x": [0, 1]}},
    "accuracy": {"metric": "l0", "tolerance": 0.1, "outputs": {"y": {"tolerance": 1.0}}},
    "search": {"routes": ["-a=[on|off]"], "exclude": [], "algorithm": "mixed"},
    "budget": {"trials": 5, "seconds": 1.5},
    "timing": {"objective": "latency", "streams": 1},
    "engine": {"plugins": [], "memory_pools": {"workspace": 1.0}, "device": "cpu"},
    "publish": {"keep": 2, "sign_key": "key.pem"},
    "quantization": {},
}


@runs
def test_routes(examples: int) -> None:
    words = [
        "-a",
        "-kgen:b",
        "-kgen:*",
        "+c",
        "@d",
        "=",
        "[",
        "]",
        "|",
        "on",
        "*",
        "...",
        "#",
        " ",
        "\n",
        "\x85",
        "\ud800",
        "0",
    ]
    pieces = st.lists(st.sampled_from(words) | texts, max_size=20).map("".join)

    @fuzzing(examples)
    @given(pieces)
    def check(text: str) -> None:
        for act in (parse, parse_partial, parse_route):
            refusal(lambda act=act: act(text, KNOBS))  # type: ignore[misc]
        refusal(lambda: open_space([text], KNOBS, [text]))

    check()


@pytest.mark.parametrize(
    "text", ["-a=" + "[" * 10**6, "-a=[" + "on|" * 10**6, "-" + "*a" * 10**6 + "=[*]", "-a=on " * 10**5]
)
def test_long_routes(text: str) -> None:
    assert refusal(lambda: parse(text, KNOBS))
    assert refusal(lambda: open_space([text], KNOBS, []))


@runs
def test_targets_of_any_structure(examples: int, tmp_path: Path) -> None:
    place, before = tmp_path / "t.toml", tree(tmp_path)

    @fuzzing(examples)
    @given(mutations(TARGET))
    def check(document: Any) -> None:
        if isinstance(document, dict):
            refusal(lambda: parse_target(document, place))

    check()
    assert tree(tmp_path) == before
    assert refusal(lambda: parse_target(TARGET, place)) is None  # what is mutated is a whole target


@runs
def test_targets_of_any_bytes(examples: int, tmp_path: Path) -> None:
    place, whole = (
        tmp_path / "t.toml",
        b'schema = 1\nname = "t"\nmodel = "m"\n[search]\nroutes = ["-a=[b|c]"]\n',
    )
    marks = st.sampled_from(
        [
            b"[",
            b"]",
            b"{",
            b'"',
            b"'''",
            b"=",
            b".",
            b"\n",
            b"\0",
            b"\xff",
            b"1e9",
            b"0x",
            b"#",
            b"1979-05-27",
        ]
    )

    @fuzzing(examples)
    @given(st.lists(st.tuples(st.integers(0, len(whole)), marks | st.binary(max_size=6)), max_size=6))
    def check(inserted: list[tuple[int, bytes]]) -> None:
        content = whole
        for at, piece in inserted:
            content = content[:at] + piece + content[at:]
        place.write_bytes(content)
        refusal(lambda: load_target(place))

    check()


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 10**5,
        "a = " + "{b = " * 10**5,
        "a" + ".a" * 10**5 + " = 1",
        "[a" + ".'a b'" * 10**5 + "]",
        "a = {" + ', b = 1, "c"' + ' . "d"' * 10**5 + " = 1}",
        "a = '" + "x" * 10**6 + "'" * 100,
        "a = 0x" + "f" * 10**5,
        "a = " + "9" * 10**5,
        "\n".join(f"a{n} = 1" for n in range(5_000)),
        "x" * 10**6 + " = 1",
        " " * (10 << 20),
    ],
    ids=["lists", "tables", "dotted", "quoted", "inline", "string", "hex", "digits", "keys", "key", "10 MiB"],
)
def test_targets_that_are_deep_or_long(text: str, tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(text)
    assert refusal(lambda: load_target(tmp_path / "t.toml"))


@runs
def test_knob_databases(examples: int) -> None:
    @fuzzing(examples)
    @given(mutations(KNOBS.to_json()), st.binary(max_size=20))
    def check(document: Any, junk: bytes) -> None:
        refusal(lambda: KnobDatabase.from_json(document))
        text = json.dumps(document)
        refusal(lambda: KnobDatabase.from_json(text))
        refusal(lambda: KnobDatabase.from_json(text.encode()[: len(junk) * 7] + junk))

    check()
    for text in (
        "[" * 10**6,
        '{"tuner_options":' * 10**5,
        "1" * 10**6,
    ):
        assert refusal(lambda text=text: KnobDatabase.from_json(text))  # type: ignore[misc]


HEADER = {
    "tuner_version": "1",
    "accuracy_algorithm": "l0",
    "tuning_expr": "-a=[on|off]",
    "accuracy_parameter": 0.1,
}
LINE = {
    "iter": 0,
    "build_route": "-a=on",
    "crash": False,
    "error_message": "",
    "accuracy_loss": {"y": 0.0},
    "gpu_time": 1.0,
}


@runs
def test_tuning_logs_are_kept_and_come_back(examples: int, tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    file = tmp_path / "log.jsonl"
    before = tree(tmp_path) - tree(store.root)

    @fuzzing(examples)
    @given(mutations(HEADER), mutations(LINE), st.binary(max_size=8))
    def check(header: Any, line: Any, junk: bytes) -> None:
        text = "\n".join(map(json.dumps, (header, LINE, line))).encode() + b"\n" + junk
        file.write_bytes(text)
        if refusal(lambda: import_trials(file, None, store)) is None:
            assert store.priors.trials("t")
            store.priors.promising("t")
        for path in store.priors.folder.glob("*"):
            path.unlink()

    check()
    assert tree(tmp_path) - tree(store.root) <= before | {file}


def test_a_line_of_ten_megabytes_and_a_deep_one_do_not_keep_the_others_from_being_used(
    tmp_path: Path,
) -> None:
    store, file = open_store(tmp_path / "store"), tmp_path / "log.jsonl"
    bad = [
        "[" * 10**6,
        json.dumps({**LINE, "build_route": "x" * 10**7}),
        json.dumps({**LINE, "error_message": "x" * 10**7}),
    ]
    file.write_text("\n".join([*bad, json.dumps({**LINE, "iter": 1})]))
    found = import_trials(file, None, store)
    assert found["usable"] == 1
    assert sum(map(len, found["problems"])) < 2000


def test_route_files_are_texts_of_a_sensible_size(tmp_path: Path) -> None:
    for content in (b"\xff\xfe", b"", b"# only\n", b"-a=on " * (1 << 20)):
        (tmp_path / "routes").write_bytes(content)
        assert refusal(lambda: read_expression_file(tmp_path / "routes"))
