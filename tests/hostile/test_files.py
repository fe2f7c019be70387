"""Arrays and other files of a user: bombs, lies about sizes, pickles, and what is no file at all."""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import random
import struct
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from routetune.tasks.report.exchange import import_trials
from routetune.tasks.routes.expression import read_expression_file
from routetune.tasks.store import open_store
from routetune.tasks.store.signing import public_keys
from routetune.tasks.targets.npz import read_npz
from routetune.tasks.targets.onnxfile import read_model
from routetune.tasks.targets.saved import saved_digest, saved_outputs
from routetune.tasks.targets.schema import load_target, parse_target

from tests.hostile.bounds import fuzzing, refusal, runs, tree
from tests.hostile.documents import mutations


def npy(shape: str, descr: str = "'<f4'", data: bytes = b"", raw: str | None = None) -> bytes:
    """An array whose header says what it likes."""
    head = raw or f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}"
    text = head.encode("latin1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def archive(path: Path, *members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", method) as file:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, content in members:
            file.writestr(name, content)
    return path


LIES = {
    "terabytes": npy("(1099511627776,)"),
    "2^62": npy("(4611686018427387904, 4)"),
    "negative": npy("(-1,)"),
    "of nothing": npy("(1099511627776,)", "'|V0'"),
    "65 dimensions": npy(f"({'1,' * 65})", data=b"\0" * 4),
    "objects": npy("(1,)", "'|O'", pickle.dumps([1])),
    "objects inside": npy("(1,)", "[('a', '|O')]", b"\0" * 8),
    "short": npy("(3,)", data=b"\0" * 4),
    "brackets": npy("", raw="(" * 3000),
    "signs": npy("", raw="-" * 9000 + "1"),
    "code": npy("", raw="{'descr': __import__('os').system('touch ran'), 'fortran_order': 0, 'shape': ()}"),
    "true": npy("(True,)", data=b"\0" * 4),
    "version": b"\x93NUMPY\x09\x00" + b"\0" * 50,
    "pickle": pickle.dumps({"a": 1}),
    "empty": b"",
}


@pytest.mark.parametrize("lie", LIES)
def test_headers_that_lie(lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = archive(tmp_path / "a.npz", ("fine.npy", npy("(1,)", data=b"\0" * 4)), ("x.npy", LIES[lie]))
    before = tree(tmp_path)
    saved = polygraphy(tmp_path / "p.json", LIES[lie])
    for act in (lambda: read_npz(path), lambda: outputs_of(saved)):
        tracemalloc.start()
        try:
            assert refusal(act)
            assert tracemalloc.get_traced_memory()[1] < 20 << 20
        finally:
            tracemalloc.stop()
    assert tree(tmp_path) == before | {saved}


def test_bytes_behind_an_array(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", ("x.npy", npy("(1,)", data=b"\0" * 8)))
    assert "behind the array" in str(refusal(lambda: read_npz(path)))


def test_bombs(tmp_path: Path) -> None:
    """A hundred megabytes in a hundred kilobytes, behind a header or a directory that says otherwise."""
    zeros = b"\0" * (100 << 20)
    path = archive(tmp_path / "a.npz", ("x.npy", npy("(1,)", data=zeros)))
    del zeros
    assert path.stat().st_size < 1 << 20
    honest = path.read_bytes()
    size = struct.pack("<I", len(npy("(1,)")) + (100 << 20))
    assert honest.count(size) >= 1
    for told in (size, struct.pack("<I", len(npy("(1,)")) + 4), struct.pack("<I", 0)):
        path.write_bytes(honest.replace(size, told))
        tracemalloc.start()
        assert refusal(lambda: read_npz(path))
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
        tracemalloc.stop()


def test_what_declares_more_than_the_memory_of_this_machine_is_not_unpacked(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", *((f"x{n}.npy", npy("(1,)", data=b"\0" * 4)) for n in range(2000)))
    with zipfile.ZipFile(path) as file:
        size = struct.pack("<I", file.infolist()[0].file_size)
    path.write_bytes(path.read_bytes().replace(size, b"\xf0\xff\xff\xff"))  # 4 GB each
    assert "would take" in str(refusal(lambda: read_npz(path)))


@runs
def test_mutated_archives(examples: int, tmp_path: Path) -> None:
    array = npy("(10,)", data=bytes(range(40)))
    methods = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
    place = tmp_path / "a.npz"
    whole = [
        archive(place, ("x.npy", array), ("../../e.npy", array), method=method).read_bytes()
        for method in methods
    ]
    before = tree(tmp_path.parent)

    @fuzzing(examples * 5)
    @given(st.integers(0, 2**32), st.integers(1, 5), st.sampled_from(whole))
    def check(seed: int, changes: int, content: bytes) -> None:
        chance, changed = random.Random(seed), bytearray(content)
        for _ in range(changes):
            changed[chance.randrange(len(changed))] = chance.choice([0, 1, 127, 255, chance.randrange(256)])
        place.write_bytes(bytes(changed))
        refusal(lambda: read_npz(place))

    check()
    assert tree(tmp_path.parent) == before


def test_archives_that_are_odd(tmp_path: Path) -> None:
    array = npy("(1,)", data=b"\0" * 4)
    twice = archive(tmp_path / "twice.npz", ("x.npy", array), ("x", array))
    assert "'x' 2 times" in str(refusal(lambda: read_npz(twice)))
    locked = archive(tmp_path / "locked.npz", ("x.npy", array))
    content = bytearray(locked.read_bytes())
    content[6] |= 1
    content[content.find(b"PK\x01\x02") + 8] |= 1
    locked.write_bytes(bytes(content))
    assert "encrypted" in str(refusal(lambda: read_npz(locked)))


def polygraphy(path: Path, raw: bytes) -> Path:
    array = {"polygraphy_class": "ndarray", "array": base64.b64encode(raw).decode()}
    path.write_text(
        json.dumps({"polygraphy_class": "RunResults", "lst": [["r", [{"outputs": {"y": array}}]]]})
    )
    return path


def outputs_of(path: Path) -> Any:
    np.savez(path.parent / "inputs.npz", x=np.zeros(1))
    target = target_with(path.parent, inputs="inputs.npz", source=path.name)
    (path.parent / "inputs.npz").unlink()
    return saved_outputs(target, None, [])  # type: ignore[arg-type]  # read before either is looked at


def target_with(place: Path, **reference: str) -> Any:
    data = {"schema": 1, "name": "t", "model": "m", "search": {"routes": "-a=b"}, "reference": reference}
    return parse_target(data, place / "t.toml")


@runs
def test_saved_outputs_of_any_structure(examples: int, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(2))
    document = json.loads(polygraphy(tmp_path / "p.json", buffer.getvalue()).read_text())

    @fuzzing(examples)
    @given(mutations(document))
    def check(changed: Any) -> None:
        (tmp_path / "p.json").write_text(json.dumps(changed))
        refusal(lambda: outputs_of(tmp_path / "p.json"))

    check()


READERS: dict[str, Callable[[Path], object]] = {
    "target": load_target,
    "model": read_model,
    "inputs": read_npz,
    "saved": lambda path: saved_digest(target_with(path.parent, inputs="i.npz", source=path.name).reference),
    "routes": read_expression_file,
    "log": lambda path: import_trials(path, None, open_store(path.parent / "store")),
    "key": lambda path: public_keys([path]),
}


@pytest.mark.parametrize("reader", READERS)
def test_pipes_and_devices_are_never_read(reader: str, tmp_path: Path) -> None:
    """A read of the first would wait for ever, one of the second would never end."""
    pipe, device, loop = (tmp_path / f"{name}.json" for name in ("pipe", "device", "loop"))
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    loop.symlink_to(loop)
    for path in (pipe, device):
        assert "is no regular file" in str(refusal(lambda path=path: READERS[reader](path)))  # type: ignore[misc]
    for path in (loop, tmp_path, tmp_path / "gone.json"):
        if (path, reader) != (tmp_path, "saved"):  # a folder's name does not end in .json
            assert refusal(lambda path=path: READERS[reader](path))  # type: ignore[misc]
