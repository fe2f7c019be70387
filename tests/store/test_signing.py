from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from routetune.tasks.canonical import digest
from routetune.tasks.errors import BadInput
from routetune.tasks.service import current_engine
from routetune.tasks.store.loader import Untrusted, load_current
from routetune.tasks.store.manifests import (
    BadPublication,
    Pointer,
    read_pointer,
    read_publication,
    write_pointer,
)
from routetune.tasks.store.sealed import seal, unseal
from routetune.tasks.store.signing import VARIABLE, check_signature, open_signer, public_keys, signature_file

FIELDS = {"backend": "onnxruntime", "device": "cpu", "cpu.flags": "avx"}
KEY = digest(FIELDS)[:16]
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="the command openssl is not there")


def openssl(*arguments: object) -> bytes:
    return subprocess.run(
        ["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60
    ).stdout


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Path]:
    """Two key pairs, made by the documented commands."""
    found = {}
    for name in ("ours", "theirs"):
        private, public = tmp_path / f"{name}.pem", tmp_path / f"{name}.pub.pem"
        openssl("genpkey", "-algorithm", "ed25519", "-out", private)
        private.chmod(0o600)
        openssl("pkey", "-in", private, "-pubout", "-out", public)
        found |= {name: private, f"{name}.pub": public}
    return found


def publish(store, data=b"engine", key=None, target="digits", fields=FIELDS):
    manifest = {"bound_to": {"target": {}, "environment": fields}, "route": "", "options": {}}
    signer = None if key is None else open_signer(key, store.root)
    engine = store.blobs.put_bytes(data)
    return store.publications.publish(target, digest(fields)[:16], engine, manifest, signer=signer)


def load(store, *public, target="digits"):
    return load_current(store.root, target, require_signature=public)


@needs_openssl
def test_what_is_signed_loads_with_that_key_and_with_no_other(store, keys):
    published = publish(store, key=keys["ours"])
    for sources in (
        [keys["ours.pub"]],
        [keys["theirs.pub"], str(keys["ours.pub"])],
        [keys["ours.pub"].read_bytes()],
    ):
        assert load(store, *sources).path == published.engine
    assert load_current(store.root, "digits").path == published.engine
    assert store.publications.verify("digits", KEY, public_keys([keys["ours.pub"]])) == []
    (ours,), (theirs,) = public_keys([keys["ours.pub"]]), public_keys([keys["theirs.pub"]])
    with pytest.raises(Untrusted, match=rf"signed by key {ours.id} only, but a signature by key {theirs.id}"):
        load(store, keys["theirs.pub"])
    (problem,) = store.publications.verify("digits", KEY, [theirs])
    assert "manifest.json is signed by key" in problem


@needs_openssl
def test_what_is_not_signed_is_refused_only_where_a_signature_is_asked_for(store, keys):
    first = publish(store)
    with pytest.raises(Untrusted, match=r"manifest\.json is not signed, but a signature by key"):
        load(store, keys["ours.pub"])
    assert load_current(store.root, "digits").path == first.engine
    # It can be signed later, by one key and by another: keys change.
    for name in ("ours", "theirs"):
        open_signer(keys[name], store.root).sign(first)
        assert load(store, keys[f"{name}.pub"]).path == first.engine
    assert store.publications.verify("digits", KEY) == []


@needs_openssl
def test_openssl_checks_our_signatures_and_we_check_its(store, keys):
    published = publish(store, key=keys["ours"])
    (public,) = public_keys([keys["ours.pub"]])
    manifest = published.engine.with_name("manifest.json")
    file = signature_file(manifest, public.id)
    told = openssl(
        "pkeyutl",
        "-verify",
        "-pubin",
        "-inkey",
        keys["ours.pub"],
        "-rawin",
        "-in",
        manifest,
        "-sigfile",
        file,
    )
    assert b"Verified Successfully" in told
    ours = file.read_bytes()
    file.unlink()
    openssl("pkeyutl", "-sign", "-inkey", keys["ours"], "-rawin", "-in", manifest, "-out", file)
    assert file.read_bytes() == ours
    assert check_signature(published, [public]) == public.id


def forge(store, published, **changes):
    """Edit a manifest as one who knows the format would: checksum and pointer are right again."""
    path = published.engine.with_name("manifest.json")
    content = {name: value for name, value in unseal(path.read_bytes()).items() if name != "check"}
    path.chmod(0o644)
    path.write_bytes(seal(content | changes, indent=2))
    repoint(store, published)


def repoint(store, published):
    place = published.engine.parents[2]
    now = read_publication(store.root, place, published.reference.generation, None)
    write_pointer(place, Pointer(now.reference, read_pointer(place).history))


@needs_openssl
@pytest.mark.parametrize(
    "change", [{"route": "-a=b"}, {"options": {"knobs": {"x": "y"}}}, {"backend": "os:system"}]
)
def test_a_manifest_edited_with_all_digests_put_right_is_refused(store, keys, change):
    published = publish(store, key=keys["ours"])
    forge(store, published, **change)
    assert load_current(store.root, "digits").manifest | change == load_current(store.root, "digits").manifest
    with pytest.raises(Untrusted, match=r"manifest\.json is not what key [0-9a-f]{16} signed"):
        load(store, keys["ours.pub"])
    (problem,) = store.publications.verify("digits", KEY, public_keys([keys["ours.pub"]]))
    assert "is not what key" in problem


@needs_openssl
def test_another_engine_under_a_signed_manifest_is_refused(store, keys):
    published = publish(store, key=keys["ours"])
    published.engine.chmod(0o644)
    published.engine.write_bytes(b"another")
    with pytest.raises(BadPublication, match="was changed after it was published"):
        load(store, keys["ours.pub"])


@needs_openssl
def test_a_signature_of_another_generation_or_place_is_refused(store, keys):
    first, second = publish(store, b"first", keys["ours"]), publish(store, b"second", keys["ours"])
    (public,) = public_keys([keys["ours.pub"]])
    files = [signature_file(one.engine.with_name("manifest.json"), public.id) for one in (first, second)]
    kept = files[1].read_bytes()
    files[1].chmod(0o644)
    for wrong in (files[0].read_bytes(), b"", kept + b"\n", kept[:-1], b"\0" * 64):
        files[1].write_bytes(wrong)
        with pytest.raises(Untrusted, match="is not what key"):
            load(store, keys["ours.pub"])
    files[1].write_bytes(kept)
    assert load(store, keys["ours.pub"]).path == second.engine
    # A whole signed generation, moved to where a service looks for another target: all its digests are right.
    place = store.root / "publications" / "other"
    shutil.copytree(store.root / "publications" / "digits", place)
    with pytest.raises(BadPublication, match=r"that of generation 2 of target 'digits'"):
        load(store, keys["ours.pub"], target="other")


@needs_openssl
def test_nothing_in_a_manifest_is_believed_before_its_signature(store, keys, tmp_path, monkeypatch):
    published = publish(store, key=keys["ours"])
    (tmp_path / "planted.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Backend: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    forge(store, published, backend="planted:Backend", device="cpu")
    with pytest.raises(Untrusted):
        current_engine("digits", store.root, require_signature=[keys["ours.pub"]])
    assert not (tmp_path / "ran").exists()


@needs_openssl
def test_private_keys_that_others_can_read_or_copy_are_refused(store, keys, tmp_path, monkeypatch):
    key = keys["ours"]
    for mode in (0o640, 0o604, 0o620):
        key.chmod(mode)
        with pytest.raises(BadInput, match=f"may be used by others .mode {mode:o}.*chmod 600"):
            open_signer(key, store.root)
    key.chmod(0o600)
    inside = store.root / "key.pem"
    shutil.copy(key, inside)
    (tmp_path / "link.pem").symlink_to(inside)
    for path in (inside, tmp_path / "link.pem"):
        with pytest.raises(BadInput, match="lies in the store"):
            open_signer(path, store.root)
    assert open_signer(None, store.root) is None
    monkeypatch.setenv(VARIABLE, str(key))
    signer = open_signer(None, store.root)
    assert signer is not None
    assert [signer.id] == [one.id for one in public_keys([keys["ours.pub"]])]
    assert open_signer(keys["theirs"], store.root).id != signer.id  # the target's own comes first


@needs_openssl
def test_what_is_no_key_of_ed25519_is_refused_by_name(store, keys, tmp_path):
    other = rsa.generate_private_key(65537, 2048).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    locked = openssl("pkey", "-in", keys["ours"], "-aes256", "-passout", "pass:x")
    os.mkfifo(tmp_path / "pipe")
    bad = {"rsa": other, "locked": locked, "empty": b"", "text": b"-----BEGIN PRIVATE KEY-----\nAA==\n"}
    told = {"rsa": "not of Ed25519, but a RSAPrivateKey", "locked": "password"}
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)
        with pytest.raises(BadInput, match=told.get(name, "is no private key in PEM")):
            open_signer(tmp_path / name, store.root)
        with pytest.raises(BadInput, match="is no public key in PEM"):
            public_keys([tmp_path / name])
    for name, sentence in {"gone": "No such file", "pipe": "is no regular file", ".": "is a folder"}.items():
        with pytest.raises(BadInput, match=sentence):
            open_signer(tmp_path / name, store.root)
    # The private half given where a public one belongs is refused too, and never half accepted.
    with pytest.raises(BadInput, match="is no public key"):
        public_keys([keys["ours"]])
    with pytest.raises(BadInput, match="no public key is given"):
        load_current(store.root, "digits", require_signature=[])


@needs_openssl
def test_signatures_go_with_their_generation_and_a_key_is_never_in_the_store(store, keys):
    for number in range(4):
        published = publish(store, str(number).encode(), keys["ours"])
    manifest = {"bound_to": {"target": {}, "environment": FIELDS}, "route": "", "options": {}}
    engine = store.blobs.put_bytes(b"last")
    store.publications.publish(
        "digits", KEY, engine, manifest, keep=2, signer=open_signer(keys["ours"], store.root)
    )
    left = sorted(store.root.rglob("*.sig"))
    assert len(left) == 2
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o222 == 0 for path in left)
    secret = keys["ours"].read_bytes().splitlines()[1]
    assert not any(secret in path.read_bytes() for path in store.root.rglob("*") if path.is_file())
    assert store.publications.rollback("digits", KEY) == published
    assert load(store, keys["ours.pub"]).path == published.engine
