from __future__ import annotations

import errno
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from routetune.tasks import store as layout
from routetune.tasks.canonical import digest
from routetune.tasks.errors import BadInput, RoutetuneError
from routetune.tasks.routes.route import Route
from routetune.tasks.store import open_store
from routetune.tasks.store.blobs import Missing
from routetune.tasks.store.files import StoreWarning
from routetune.tasks.store.keys import stage_key
from routetune.tasks.store.locks import IN_USE
from routetune.tasks.store.records import row
from routetune.tasks.store.sealed import seal
from routetune.tasks.trial import Trial

FIELDS = {"backend": "onnxruntime", "device": "cpu"}
KEYS = [stage_key("build", code="0" * 64, route=name) for name in "abc"]
RUN = "20261130T024500Z-1a2b3c4d"


def test_where_the_store_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("ROUTETUNE_STORE", raising=False)
    assert open_store().root == tmp_path / "data" / "routetune"
    assert open_store().root.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("ROUTETUNE_STORE", str(tmp_path / "named"))
    assert open_store().root == tmp_path / "named"
    assert open_store(tmp_path / "given").root == tmp_path / "given"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_store("~/home").root == tmp_path / "home"
    monkeypatch.chdir(tmp_path)
    assert open_store("relative").root == tmp_path / "relative"
    # A link to a store is that store, by its real path.
    (tmp_path / "link").symlink_to(tmp_path / "given")
    assert open_store(tmp_path / "link").root == tmp_path / "given"


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/routetune", "dangling"])
def test_a_place_that_cannot_be_a_store_is_refused_by_name(tmp_path, place):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to("/proc/routetune")
    with pytest.raises(BadInput, match=rf"store .*{place} cannot be used .*--store or ROUTETUNE_STORE"):
        open_store(tmp_path / place)


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path):
    open_store(tmp_path / "store")
    code = (
        "import os, sys; from routetune.tasks.store import open_store\n"
        "from routetune.tasks.errors import BadInput\n"
        "os.geteuid() or (os.setgid(65534), os.setuid(65534))\n"  # nothing is read-only to root
        "try: open_store(sys.argv[1])\n"
        "except BadInput as error: print(error)"
    )
    (tmp_path / "store").chmod(0o555)
    for folder in tmp_path.parents:
        if folder.stat().st_uid == os.getuid() and folder.name.startswith("pytest"):
            folder.chmod(0o755)
    tmp_path.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "store")], capture_output=True, text=True
    )
    assert "cannot be used (Permission denied)" in done.stdout, done.stderr


def test_other_peoples_folders_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(BadInput, match=r"with other things in it \(thesis\.tex"):
        open_store(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_store_of_a_newer_routetune_is_refused(store):
    (store.root / "store.json").write_bytes(seal({"schema": 2}))
    with pytest.raises(BadInput, match=r"store .*store\.json has schema 2, this routetune reads up to 1"):
        open_store(store.root)


def test_many_processes_make_one_store_at_once(tmp_path):
    code = "import sys; from routetune.tasks.store import open_store; open_store(sys.argv[1])"
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path / "a" / "store")]
    processes = [subprocess.Popen(command) for _ in range(6)]
    assert [process.wait(30) for process in processes] == [0] * 6


def test_a_store_that_another_process_makes_between_two_looks(tmp_path):
    code = (
        "import sys; from pathlib import Path; from routetune.tasks.store import open_store, sealed\n"
        "root = Path(sys.argv[1])\n"
        "def hook(event, args):\n"
        "    if event == 'os.listdir' and str(args[0]) == str(root):\n"
        "        (root / 'store.json').write_bytes(sealed.seal({'schema': 1})); print('there')\n"
        "sys.addaudithook(hook)\n"
        "open_store(root)"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "there\n"), done.stderr


class Work:
    """A small tuning that keeps something of every kind, and counts what it could not find in the store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.made = 0

    def run(self) -> bytes:
        """Returns the bytes of the engine that is published in the end."""
        store = open_store(self.root)
        with store.runs.open("digits", FIELDS) as run:
            done = store.records.finished_routes(RUN)
            for key in KEYS:
                route = Route((("-a", key["route"]),))
                engine = self._engine(store, key)
                if route.id not in done:
                    store.records.append([row(RUN, "digits", "0" * 16, Trial(route))])
            run.finish("interrupted")
        self._publish(store, engine)
        return store.publications.current("digits", digest(FIELDS)[:16]).engine.read_bytes()

    def _engine(self, store, key):
        entry = store.entries.get(key)
        try:
            if entry is not None:
                return store.blobs.verified(entry.blobs[0]).name
        except Missing:
            pass
        self.made += 1
        engine = store.blobs.put_bytes(f"engine of {key['route']}".encode() * 100)
        store.entries.put(key, {"size": 100}, [engine])
        return engine

    def _publish(self, store, engine):
        try:
            found = store.publications.current("digits", digest(FIELDS)[:16])
            fresh = found is not None and not store.publications.verify("digits", digest(FIELDS)[:16])
        except RoutetuneError as error:
            warnings.warn(str(error), StoreWarning, stacklevel=1)
            fresh = False
        if not fresh:
            manifest = {"bound_to": {"environment": FIELDS}, "route": "-a=c", "options": {}}
            store.publications.publish("digits", digest(FIELDS)[:16], engine, manifest)


def kept(root):
    files = sorted(path for path in root.rglob("*") if path.is_file() and "set-aside" not in path.parts)
    return [path for path in files if path.name != IN_USE]  # nothing is in it


@pytest.mark.parametrize("damage", ["truncated", "deleted"])
def test_every_file_in_turn_is_truncated_or_deleted_and_the_store_heals(tmp_path, damage):
    """G47."""
    work = Work(tmp_path / "store")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = work.run()
        assert (work.made, work.run()) == (3, answer)
        assert work.made == 3
    kinds = set()
    for path in kept(work.root):
        kind = path.relative_to(work.root).parts[0]
        kinds.add(kind if kind != "publications" else path.name)
        path.unlink()
        if damage == "truncated":
            path.touch()
        made = work.made
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert work.run() == answer
        told = [str(warning.message) for warning in caught if issubclass(warning.category, StoreWarning)]
        # That a whole entry, run or part of the records is gone cannot be seen: it is a plain miss.
        unseen = damage == "deleted" and kind in ("entries", "runs", "records")
        assert bool(told) is not unseen or path.name in ("engine.onnx", "manifest.json"), (path, told)
        assert any(path.name in text for text in told) or unseen or kind == "publications", (path, told)
        assert work.made == made + (kind in ("blobs", "entries"))
        with warnings.catch_warnings():  # healed
            warnings.simplefilter("error")
            made = work.made
            assert work.run() == answer
            assert work.made == made
        assert open_store(work.root).records.finished_routes(RUN) == {Route((("-a", n),)).id for n in "abc"}
    assert kinds == {
        "store.json",
        "blobs",
        "entries",
        "runs",
        "records",
        "current.json",
        "manifest.json",
        "engine.onnx",
    }


@pytest.mark.parametrize("write", [True, False])
@pytest.mark.parametrize("part", [*layout._PARTS, layout.SCRATCH])
@pytest.mark.parametrize("where", ["outside", "store/inside"])
def test_a_part_that_is_a_link_is_refused_before_anything_is_done(tmp_path, part, where, write):
    """What is written, read or collected through it would be somebody else's, or another part's."""
    root = open_store(tmp_path / "store").root
    (tmp_path / where / "old").mkdir(parents=True)
    (root / part).symlink_to(tmp_path / where)
    before = sorted(map(str, tmp_path.rglob("*")))
    with pytest.raises(BadInput, match=rf"store/{part} is a link to .*; the store follows none"):
        open_store(root, write=write)
    assert sorted(map(str, tmp_path.rglob("*"))) == before


def filled(place):
    """A store with a file of each kind that is read, and the digest of its one blob."""
    store = open_store(place / "store")
    engine = store.blobs.put_bytes(b"engine")
    store.entries.put(KEYS[0], {"engine": {"digest": engine}}, [engine])
    store.records.append([row(RUN, "digits", "e" * 16, Trial(Route()))])
    with store.runs.open("digits", {"target": {}, "environment": {}}) as run:
        run.finish("finished", {})
    return store, engine


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.EACCES, errno.ESTALE, errno.ENOMEM])
def test_what_cannot_be_read_now_is_missed_and_stays(tmp_path, monkeypatch, number):
    """It may be whole: only what is damaged is set aside, where a collector takes it in time."""
    store, engine = filled(tmp_path)
    files = sorted(path for path in store.root.rglob("*") if path.is_file() and path.suffix != ".lock")
    really = os.open

    def failing(path, flags, *rest, **more):
        if not flags & (os.O_CREAT | os.O_DIRECTORY):
            raise OSError(number, os.strerror(number), str(path))
        return really(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", failing)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert store.entries.get(KEYS[0]) is None
        assert list(store.entries) == []
        assert store.records.read().num_rows == 0
        assert store.runs.list() == []
    with pytest.raises(Missing, match="cannot be read"):
        store.blobs.verified(engine)
    monkeypatch.undo()
    assert len(told) == 4 and all("cannot be read" in str(one.message) for one in told)
    assert files == sorted(p for p in store.root.rglob("*") if p.is_file() and p.suffix != ".lock")
    assert store.entries.get(KEYS[0]).blobs == (engine,)
    assert store.blobs.verified(engine).read_bytes() == b"engine"
    assert store.records.read().num_rows == len(store.runs.list()) == 1


@pytest.mark.parametrize("thing", ["pipe", "folder", "link", "device"])
def test_what_is_no_file_is_damage_and_holds_nothing_up(tmp_path, thing):
    """A pipe planted in the store would hold every reader up for ever."""
    store, engine = filled(tmp_path)
    planted = [
        path
        for path in store.root.rglob("*")
        if (path.is_file() and path.suffix in (".json", ".parquet")) or path.name == engine
    ]
    assert {path.relative_to(store.root).parts[0] for path in planted} == {
        *("blobs", "entries", "records", "runs", "store.json")
    }
    for path in planted:
        path.unlink()
        if thing == "pipe":
            os.mkfifo(path)
        elif thing == "folder":
            path.mkdir()
        else:
            path.symlink_to("/dev/zero" if thing == "device" else "/etc/passwd")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        assert list(store.entries) == []
        assert store.records.read().num_rows == 0
        assert store.runs.list() == []
        with pytest.raises((Missing, BadInput)):
            store.blobs.verified(engine)
        if thing != "folder":
            open_store(store.root)
