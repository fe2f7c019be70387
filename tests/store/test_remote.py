"""A remote: which URLs name one, and what is told, tried again and given up when the service fails."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from routetune.tasks.doctor import examine
from routetune.tasks.errors import BadInput
from routetune.tasks.store import open_store, store_root
from routetune.tasks.store.files import StoreWarning
from routetune.tasks.store.remote import CHUNK, RETRIES, Remote, Unreachable, is_url

from tests.buckets import KEY_ID, SECRET, Server


@pytest.fixture
def bucket(bucket_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a bucket that this process can reach."""
    for name, value in bucket_server.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return f"s3://{bucket_server.bucket(f'bucket-{os.urandom(4).hex()}').name}/team"


class Faulty(BaseHTTPRequestHandler):
    """A service with one answer to everything: no real one can be made to give it."""

    status, body, asked = 200, b"", 0

    def answer(self) -> None:
        type(self).asked += 1
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.send_header("ETag", '"e"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(self.body)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = answer

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Faulty]]:
    handler = type("Fresh", (Faulty,), {"asked": 0})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
    variables = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    yield handler
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("s3://", "names no bucket"),
        ("file:///", "names no bucket"),
        ("http://bucket/x", "begins with one of s3://"),
        ("s3://key:sesame@bucket/x", "and nothing else"),
        ("s3://bucket/x?token=sesame", "and nothing else"),
        ("s3://bucket/x#sesame", "and nothing else"),
    ],
)
def test_a_url_that_names_no_store_is_refused_and_no_secret_in_it_repeated(url: str, why: str) -> None:
    for attempt in (lambda: Remote(url), lambda: store_root(url)):
        with pytest.raises(BadInput, match=why) as refused:
            attempt()
        assert "sesame" not in str(refused.value)


def test_what_is_a_url_and_what_a_folder() -> None:
    assert is_url("s3://bucket/x") and is_url("memory://x")
    assert not any(map(is_url, ("/srv/store", "store", "~/store", "s3", Path("/srv/store"))))
    with pytest.raises(BadInput, match="give it as a str"):
        is_url(Path("s3://bucket/x"))


def test_without_obstore_the_command_that_installs_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(BadInput, match=r"pip install 'routetune\[objects\]'"):
        open_store("s3://bucket/without")


def test_an_object_is_created_once_and_read_back_in_parts(bucket: str, tmp_path: Path) -> None:
    remote = Remote(bucket)
    assert remote.create("a/b", b"first") and not remote.create("a/b", b"second")
    assert (remote.read("a/b"), remote.size("a/b")) == (b"first", 5)
    assert (remote.read("nothing"), remote.size("nothing")) == (None, None)
    assert remote.fetch("nothing", tmp_path / "nothing") is None
    large = tmp_path / "large"
    large.write_bytes(bytes(range(256)) * (2 * CHUNK // 256 + 3))
    remote.replace("a/large", large)
    remote.fetch("a/large", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == large.read_bytes()
    assert [(one.key, one.size) for one in remote.list("a")] == [
        ("a/b", 5),
        ("a/large", large.stat().st_size),
    ]
    remote.delete("a/b")
    remote.delete("a/b")
    assert [one.key for one in remote.list("a")] == ["a/large"]
    assert remote.keeps_first() and remote.list("probes") == []


@pytest.mark.parametrize(
    ("status", "body", "told", "wrong"),
    [
        (403, "<Error><Code>AccessDenied</Code><Message>{secret}</Message></Error>", "AccessDenied", True),
        (403, "<Error><Code>InvalidAccessKeyId</Code><Id>{key}</Id></Error>", "InvalidAccessKeyId", True),
        (403, "<Error><Code>SignatureDoesNotMatch</Code><S>{secret}</S></Error>", "SignatureDoesNot", True),
        (404, "<Error><Code>NoSuchBucket</Code></Error>", "there is no such bucket", True),
        (503, "<Error><Code>SlowDown</Code><Message>{secret}</Message></Error>", "SlowDown", False),
        (500, "{secret} {key}", "status 500", False),
        (200, "this is not XML {secret}", "service", False),
    ],
)
def test_a_failing_service_is_told_of_in_our_words(
    faulty: type[Faulty], status: int, body: str, told: str, wrong: bool
) -> None:
    faulty.status, faulty.body = status, body.format(secret=SECRET, key=KEY_ID).encode()
    with pytest.raises(Unreachable, match=told) as failed:
        Remote("s3://bucket/x").check()
    assert failed.value.wrong == wrong
    assert SECRET not in str(failed.value) and KEY_ID not in str(failed.value)
    assert failed.value.__cause__ is None and failed.value.__suppress_context__
    assert faulty.asked <= 1 + RETRIES


def test_a_service_that_takes_requests_and_never_answers_is_given_up(
    faulty: type[Faulty], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("routetune.tasks.store.remote.REQUEST", 0.2)
    monkeypatch.setattr("routetune.tasks.store.remote.ALTOGETHER", 0.4)
    never = threading.Event()
    monkeypatch.setattr(faulty, "do_GET", lambda _: never.wait(30))
    store = open_store("s3://bucket/hangs", write=False)
    assert store.mirror is not None
    with pytest.warns(StoreWarning, match="does not answer; going on with"):
        assert store.runs.list() == []
    assert store.mirror.is_asleep
    never.set()


def test_a_mirror_that_cannot_be_made_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    with pytest.raises(BadInput, match="let XDG_CACHE_HOME name a folder that can"):
        open_store("s3://bucket/x")


def test_credentials_are_in_no_representation(bucket: str) -> None:
    store = open_store(bucket)
    assert store.mirror is not None
    for thing in (store, store.mirror, store.mirror.remote, vars(store.mirror.remote)):
        assert SECRET not in repr(thing) and KEY_ID not in repr(thing)


def found_by_doctor(url: str) -> tuple[bool, str]:
    [bucket] = [one for one in examine(url)["checks"] if one["name"] == "bucket"]
    return bucket["ok"], bucket["found"]


def test_doctor_says_whether_the_bucket_knows_conditional_writes(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_worker", "_knobs", "prefect_server"):  # they have tests of their own, and take seconds
        monkeypatch.setattr(f"routetune.tasks.doctor.{name}", lambda: (True, ""))
    assert found_by_doctor(str(tmp_path / "store")) == (True, "none: the store is a folder")
    ok, found = found_by_doctor(bucket)
    assert ok and "knows conditional writes" in found
    ok, found = found_by_doctor("s3://nowhere/at-all")
    assert not ok and "there is no such bucket" in found


def test_doctor_warns_of_a_service_that_lets_the_second_writer_win(
    faulty: type[Faulty], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_worker", "_knobs", "prefect_server"):
        monkeypatch.setattr(f"routetune.tasks.doctor.{name}", lambda: (True, ""))
    ok, found = found_by_doctor("s3://bucket/obliging")
    assert not ok and "lets a second writer overwrite a first" in found
