"""Signatures of manifests by Ed25519, which say who published, where digests only say what.

A signature covers the bytes of manifest.json and lies beside it, 64 raw bytes, as manifest.<id>.sig. The id
is that of the key: the first 16 hex digits of the SHA-256 of its public half in DER. `openssl pkeyutl` makes
and checks the same. (RFC 8032 for the algorithm, RFC 8410 for the form of the keys.)
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from routetune.tasks.errors import BadInput
from routetune.tasks.reading import read_bounded
from routetune.tasks.store.files import Damaged, is_inside, open_regular, read_file, write_atomically
from routetune.tasks.store.manifests import MANIFEST, BadPublication, Publication

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

#: Names the file of the private key, where a target does not.
VARIABLE = "ROUTETUNE_SIGN_KEY"
_LARGEST = 1 << 16
_LENGTH = 64
_HOW = "make one with: openssl genpkey -algorithm ed25519"

#: A public key: the path of a PEM file, or the PEM text itself as bytes.
KeySource = Path | str | bytes


class Untrusted(BadPublication):
    """A manifest is not signed by a key that was asked for, or is not what was signed."""


@dataclass(frozen=True, slots=True)
class Signer:
    """A private key, ready to sign."""

    key: Ed25519PrivateKey
    id: str

    def sign(self, publication: Publication) -> Path:
        """Put a signature beside the manifest of a publication, one of this key is replaced; where it lies.

        Raises:
            BadPublication: the manifest is not the one that was read.
        """
        manifest = publication.engine.with_name(MANIFEST)
        raw = _manifest_bytes(publication)
        path = signature_file(manifest, self.id)
        write_atomically(path, self.key.sign(raw), 0o444)
        return path


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key that a manifest may be signed by."""

    key: Ed25519PublicKey
    id: str


def signature_file(manifest: Path, key_id: str) -> Path:
    """Where the signature of a manifest by a key lies."""
    return manifest.with_name(f"{manifest.stem}.{key_id}.sig")


def open_signer(named: Path | None, root: Path) -> Signer | None:
    """The private key to sign with: `named`, else the one of ROUTETUNE_SIGN_KEY; None where neither is given.

    Args:
        named: the file that the target names.
        root: the store; no private key may lie in it.

    Raises:
        BadInput: it cannot be read, is none of Ed25519 in PEM without a password, lies in the store, or may
            be read by others than its owner; or the library is not installed.
    """
    told = os.environ.get(VARIABLE)
    path = named or (Path(told).expanduser().absolute() if told else None)
    if path is None:
        return None
    what = "private key"
    raw = _read(path, what)
    if is_inside(root, path):
        raise BadInput(
            f"{what} {path} lies in the store {root}, which others copy and read; move it elsewhere"
        )
    if (mode := path.stat().st_mode & 0o777) & 0o077:
        raise BadInput(f"{what} {path} may be used by others (mode {mode:o}); run: chmod 600 {path}")
    key = _parsed(raw, f"{what} {path}", private=True)
    return Signer(key, _id(key.public_key()))


def public_keys(sources: Iterable[KeySource]) -> tuple[PublicKey, ...]:
    """The keys of PEM files, or of PEM texts given as bytes.

    Raises:
        BadInput: none is given, one cannot be read or is no public key of Ed25519, or the library is not
            installed.
    """
    keys = []
    for source in sources:
        what = "a public key" if isinstance(source, bytes) else f"public key {source}"
        raw = source if isinstance(source, bytes) else _read(Path(source), "public key")
        key = _parsed(raw, what, private=False)
        keys.append(PublicKey(key, _id(key)))
    if not keys:
        raise BadInput("a signature is asked for, but no public key is given that it may be by")
    return tuple(keys)


def check_signature(publication: Publication, keys: Sequence[PublicKey]) -> str:
    """The id of the key that the manifest of a publication is signed by.

    The bytes that are checked are those that the publication was parsed from: their SHA-256 is compared.

    Raises:
        Untrusted: it is not signed by any of `keys`, or is not what was signed; the message names it.
    """
    from cryptography.exceptions import InvalidSignature

    manifest, raw = publication.engine.with_name(MANIFEST), _manifest_bytes(publication)
    unlike = []
    for key in keys:
        signature = _signature(signature_file(manifest, key.id))
        if signature is None:
            continue
        try:
            key.key.verify(signature, raw)
            return key.id
        except InvalidSignature:
            unlike.append(key.id)
    asked = ", ".join(key.id for key in keys)
    if unlike:
        raise Untrusted(
            f"manifest {manifest} is not what key {unlike[0]} signed: it was changed since, or the signature "
            "is that of another generation; publish again where the private key is"
        )
    others = sorted(path.name.split(".")[1] for path in manifest.parent.glob(f"{manifest.stem}.*.sig"))
    found = f"is signed by key {', '.join(others)} only" if others else "is not signed"
    raise Untrusted(f"manifest {manifest} {found}, but a signature by key {asked} is asked for")


def _manifest_bytes(publication: Publication) -> bytes:
    path = publication.engine.with_name(MANIFEST)
    try:
        raw = read_file(path)
    except (Damaged, OSError) as error:
        raise BadPublication(f"manifest {path} cannot be read: {error}") from error
    if hashlib.sha256(raw).hexdigest() != publication.reference.manifest:
        raise BadPublication(f"manifest {path} was changed while it was being read")
    return raw


def _signature(path: Path) -> bytes | None:
    """The bytes of a signature, at most one more than there should be; None where there is none."""
    try:
        with open_regular(path, links=False) as file:
            return file.read(_LENGTH + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Untrusted(f"signature {path} cannot be read: {error.strerror}") from error


def _read(path: Path, what: str) -> bytes:
    try:
        return read_bounded(path, what, _LARGEST)
    except OSError as error:
        raise BadInput(f"{what} {path} cannot be read: {error.strerror or error}") from None


def _parsed(raw: bytes, what: str, private: bool) -> Any:
    """The key in a PEM text. Raises BadInput."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric import ed25519
        from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
    except ImportError:
        raise BadInput("signatures need the library cryptography: pip install 'routetune[signing]'") from None
    kind = ed25519.Ed25519PrivateKey if private else ed25519.Ed25519PublicKey
    try:
        key = load_pem_private_key(raw, None) if private else load_pem_public_key(raw)
    except TypeError:  # a password is needed
        raise BadInput(
            f"{what} is protected by a password, which cannot be asked for; keep it without"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        half = "" if private else " -pubout"
        raise BadInput(
            f"{what} is no {'private' if private else 'public'} key in PEM; {_HOW}{half}"
        ) from None
    if not isinstance(key, kind):
        raise BadInput(f"{what} is not of Ed25519, but a {type(key).__name__}; {_HOW}")
    return key


def _id(key: Ed25519PublicKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()[:16]
