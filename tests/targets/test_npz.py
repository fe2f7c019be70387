from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from routetune.tasks.errors import BadInput
from routetune.tasks.targets.npz import read_npz


class Trap:
    """Unpickling it would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_back_by_name(tmp_path: Path, save: object) -> None:
    save(tmp_path / "a.npz", x=np.arange(3), y=np.float32(2))  # type: ignore[operator]
    found = read_npz(tmp_path / "a.npz")
    assert found["x"].tolist() == [0, 1, 2]
    assert (found["y"].shape, found["y"].dtype) == ((), np.float32)


def test_pickles_are_refused_and_never_run(tmp_path: Path) -> None:
    trap = np.empty(1, dtype=object)
    trap[0] = Trap(tmp_path / "sprung")
    np.savez(tmp_path / "a.npz", fine=np.zeros(2), bad=trap)
    with pytest.raises(BadInput, match="'bad' holds Python objects, which are never loaded"):
        read_npz(tmp_path / "a.npz")
    assert not (tmp_path / "sprung").exists()


def test_each_way_of_being_no_npz_has_its_own_sentence(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(2))
    np.savez(tmp_path / "whole.npz", x=np.arange(1000))
    content = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "short.npz").write_bytes(content[: len(content) // 2])
    (tmp_path / "flipped.npz").write_bytes(content[:900] + bytes([content[900] ^ 1]) + content[901:])
    (tmp_path / "empty.npz").write_bytes(b"")
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as archive:
        archive.writestr("x", "not an array")
    expected = {
        "none.npz": "does not exist",
        "n" * 300: "cannot be read",
        "": "is a folder",
        "a.npy": "is not an npz file",
        "short.npz": "is not an npz file",
        "empty.npz": "is not an npz file",
        "flipped.npz": "Bad CRC",
        "text.npz": "'x' is not a plain array",
    }
    for name, sentence in expected.items():
        with pytest.raises(BadInput) as raised:
            read_npz(tmp_path / name)
        assert sentence in str(raised.value), name
        assert str(tmp_path / name) in str(raised.value)
