"""A remote: a bucket, or a prefix in one, behind the few requests that a shared store needs.

The only condition ever asked for is "create if it is not there", which nearly every service knows: nothing
here depends on ETags or on versions. Whatever goes wrong is said without the service's own text, which may
quote a signed request.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from routetune.tasks.errors import BadInput, RoutetuneError
from routetune.tasks.store.files import open_new, sync_file

#: What a URL of a store may begin with; the last two are for tests, and for a folder that many hosts mount.
SCHEMES = ("s3", "gs", "file", "memory")
#: Bytes of one request: one of this size is over in time also on a slow line.
CHUNK = 8 << 20
#: Seconds to connect, for one request, and after which a request that failed is not tried again.
CONNECT, REQUEST, ALTOGETHER = 5, 30, 30
RETRIES = 3

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SQUEEZED = re.compile(r"(s3|gs|memory):/[^/]")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_DENIED = ("PermissionDeniedError", "UnauthenticatedError", "PermissionError")
_REFUSED = ("401", "403")
#: Where a machine asks for its own role; we get there when nothing else gives credentials.
_METADATA = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
#: Answers that no later try will change: a person has to.
_WRONG = ("NoSuchBucket", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidBucketName")


#: One place for all of a process.
_memory: dict[str, Any] = {}


class Unreachable(RoutetuneError):
    """The remote did not answer, or did not do what was asked.

    Attributes:
        wrong: what a person has to put right, since no later try will succeed.
    """

    def __init__(self, message: str, wrong: bool = False) -> None:
        super().__init__(message)
        self.wrong = wrong


@dataclass(frozen=True, slots=True)
class Listed:
    """An object as a listing tells of it.

    Attributes:
        modified: seconds since the epoch.
    """

    key: str
    size: int
    modified: float


def is_url(place: Path | str) -> bool:
    """Whether `place` is the URL of a remote and no folder.

    Raises:
        BadInput: it was one until it was made a Path, which drops a slash.
    """
    if isinstance(place, Path):
        if _SQUEEZED.match(str(place)):
            raise BadInput(f"store {place} was made a Path, which no URL survives: give it as a str")
        return False
    return _URL.match(place) is not None


def checked(url: str) -> str:
    """`url`, without slashes at its end. Raises BadInput where it cannot be the URL of a store."""
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        # It is not repeated, since what stands there may be a password.
        raise BadInput(
            f"the store's URL ({parts.scheme}://...) may hold a bucket and a prefix, and nothing else: "
            "credentials come from the environment or from the machine's role"
        )
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise BadInput(f"store {url}: expected a folder or a URL that begins with one of {known}")
    if not (parts.path.strip("/") if parts.scheme == "file" else parts.netloc):
        raise BadInput(f"store {url}: it names no bucket; write {parts.scheme}://BUCKET/PREFIX")
    return url.rstrip("/")


class Remote:
    """The remote at `url`. Keys are relative to it, such as "blobs/ab/cd/abcd...".

    Every method raises Unreachable where the service does not do what is asked within the limits.

    Raises:
        BadInput: no remote can be at `url`, or obstore is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = checked(url)
        self._store = _opened(self.url)

    def read(self, key: str) -> bytes | None:
        """The bytes of a small object; None where there is none."""
        import obstore

        with self._asked("read", key):
            try:
                return bytes(obstore.get(self._store, key).bytes())
            except FileNotFoundError as error:
                _refuse_lost_bucket(error)
                return None

    def fetch(self, key: str, path: Path) -> str | None:
        """Write an object to the new file `path`, onto the disk; its SHA-256, None where there is none."""
        import obstore

        size = self.size(key)
        if size is None:
            return None
        found = hashlib.sha256()
        with open_new(path) as file, self._asked("read", key):
            for start in range(0, size, CHUNK):
                end = min(start + CHUNK, size)
                try:
                    block = bytes(obstore.get_range(self._store, key, start=start, end=end))
                except FileNotFoundError:
                    return None  # deleted meanwhile
                found.update(block)
                file.write(block)
            sync_file(file)
        return found.hexdigest()

    def size(self, key: str) -> int | None:
        """Bytes of an object; None where there is none."""
        import obstore

        with self._asked("look at", key):
            try:
                return int(obstore.head(self._store, key)["size"])
            except FileNotFoundError as error:
                _refuse_lost_bucket(error)
                return None

    def create(self, key: str, content: bytes) -> bool:
        """Make an object; False where there is one already, which stays, be it of the same bytes."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with self._asked("write", key):
            try:
                obstore.put(self._store, key, content, mode="create")
            except AlreadyExistsError:
                return False
            return True

    def replace(self, key: str, content: bytes | Path) -> None:
        """Make an object, or one anew; a file goes up in parts, and is there when all of them are."""
        import obstore

        with self._asked("write", key):
            obstore.put(self._store, key, content, chunk_size=CHUNK, max_concurrency=4)

    def delete(self, key: str) -> None:
        """Delete an object; gone is no error."""
        import obstore

        with self._asked("delete", key):
            try:
                obstore.delete(self._store, key)
            except FileNotFoundError:
                return

    def list(self, folder: str, after: str | None = None) -> list[Listed]:
        """Every object below `folder`, by key; with `after` those behind that key."""
        import obstore

        with self._asked("list", f"{folder}/"):
            found = [
                Listed(str(one["path"]), int(one["size"]), one["last_modified"].timestamp())
                for page in obstore.list(self._store, folder, offset=after)
                for one in page
            ]
        return sorted(found, key=lambda one: one.key)

    def modified(self, key: str) -> float:
        """When an object was written, in seconds since the epoch; 0 for what is gone."""
        import obstore

        with self._asked("look at", key):
            try:
                return float(obstore.head(self._store, key)["last_modified"].timestamp())
            except FileNotFoundError as error:
                _refuse_lost_bucket(error)
                return 0.0

    def check(self) -> None:
        """Raise Unreachable unless it answers and lets us look."""
        import obstore

        with self._asked("list", ""):
            next(iter(obstore.list(self._store, "store-is-there", chunk_size=1)), None)

    def keeps_first(self) -> bool:
        """Whether a second "create" of one key is refused, as it must be; leaves nothing behind."""
        key = f"probes/{os.urandom(16).hex()}"
        try:
            return self.create(key, b"first") and not self.create(key, b"second")
        finally:
            self.delete(key)

    @contextmanager
    def _asked(self, what: str, key: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, FileNotFoundError, PermissionError) as error:
            reason, wrong = _reason(error)
            raise Unreachable(f"{self.url}: cannot {what} {key or 'it'}: {reason}", wrong) from None


def _refuse_lost_bucket(error: FileNotFoundError) -> None:
    """Raise it where it is no object that is missing, but the bucket."""
    if "NoSuchBucket" in str(error):
        raise error


def _reason(error: Exception) -> tuple[str, bool]:
    """Why, in our words and the service's code for it, and whether a person has to put it right."""
    text, kind = str(error), type(error).__name__
    code, status = _CODE.search(text), _STATUS.search(text)
    told = " ".join([*([f"status {status[1]}"] if status else []), *([code[1]] if code else [])])
    if any(place in text for place in _METADATA):
        return (
            "no credentials were found, neither in the environment nor of this machine (profiles in ~/.aws "
            "are not read)"
        ), True
    if (code and code[1] in _WRONG) or (status and status[1] in _REFUSED) or kind in _DENIED:
        why = "there is no such bucket" if code and code[1] == "NoSuchBucket" else "it is not allowed"
        return f"{why} ({told or kind})", True
    return f"the service failed ({told})" if told else "the service does not answer", False


def _opened(url: str) -> Any:
    """obstore's own store."""
    try:
        from obstore.store import LocalStore, MemoryStore, from_url
    except ImportError as error:
        raise BadInput(
            f"store {url} needs obstore, which is not installed: pip install 'routetune[objects]'"
        ) from error
    from obstore.exceptions import BaseError

    scheme, options = url.partition(":")[0], _options()
    try:
        if scheme == "memory":
            return _memory.setdefault(url, MemoryStore())
        if scheme == "file":
            return LocalStore(urlsplit(url).path, mkdir=True)
        # One request for each object that is deleted: not every service knows the one for many.
        own = {"disable_bulk_delete": True} if scheme == "s3" else {}
        return from_url(url, **options, **own)  # type: ignore[call-overload]
    except (BaseError, ValueError) as error:
        raise BadInput(f"store {url} cannot be opened: {_reason(error)[0]}") from None


def _options() -> dict[str, Any]:
    plain = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true")
    return {
        "client_options": {
            "connect_timeout": timedelta(seconds=CONNECT),
            "timeout": timedelta(seconds=REQUEST),
            "allow_http": plain,
        },
        "retry_config": {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=ALTOGETHER)},
    }
