"""The command line on what is signed, and on inputs that are refused before anything is built."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest
from onnx import helper
from routetune.tasks.store import open_store
from routetune.tasks.store.loader import Untrusted, load_current
from routetune.tasks.store.signing import open_signer

from conftest import Command, answer_of
from tests.published import adding, publish, write_target

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="the command openssl is not there")


def key_pair(place: Path, name: str) -> tuple[Path, Path]:
    private, public = place / f"{name}.pem", place / f"{name}.pub.pem"
    make, derive = ["genpkey", "-algorithm", "ed25519"], ["pkey", "-in", private, "-pubout"]
    for arguments in ([*make, "-out", private], [*derive, "-out", public]):
        subprocess.run(["openssl", *map(str, arguments)], check=True, timeout=60, capture_output=True)
    private.chmod(0o600)
    return private, public


def test_path_and_verify_ask_for_the_key_that_they_are_given(
    tmp_path: Path, store_folder: Path, routetune: Command
) -> None:
    (private, ours), (_, theirs) = key_pair(tmp_path, "ours"), key_pair(tmp_path, "theirs")
    store = open_store(store_folder)
    published = publish(store, tmp_path, 1.0)
    target = tmp_path / "plus.toml"
    unsigned = routetune("path", target, "--public-key", ours)
    assert (unsigned.returncode, unsigned.stdout) == (1, "")
    assert "is not signed" in unsigned.stderr
    signer = open_signer(private, store.root)
    assert signer is not None
    signer.sign(published)
    for what in (target, "plus"):
        found = routetune("path", what, "--public-key", theirs, "--public-key", ours)
        assert found.stdout == f"{published.engine}\n", found.stderr
        assert routetune("path", what, "--public-key", theirs).returncode == 1
    assert routetune("verify", target, "--public-key", ours).returncode == 0
    refused = routetune("verify", target, "--public-key", theirs, "--json")
    assert refused.returncode == 1
    assert "only, but a signature by key" in answer_of(refused)["problems"][0]
    assert routetune("verify", target, "--public-key", private).returncode == 2


def test_bad_inputs_end_with_two_and_a_sentence(tmp_path: Path, routetune: Command) -> None:
    target = write_target(tmp_path)
    (private, _), text = key_pair(tmp_path, "ours"), target.read_text()
    private.chmod(0o644)
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "key.toml").write_text(text + '[publish]\nsign_key = "ours.pem"\n')
    (tmp_path / "cycle.toml").write_text(text.replace("plus.onnx", "cycle.onnx"))
    model = adding(1.0)
    model.graph.node.append(helper.make_node("Relu", ["a"], ["b"]))
    model.graph.node.append(helper.make_node("Relu", ["b"], ["a"]))
    onnx.save(model, tmp_path / "cycle.onnx")
    sentences = {"pipe": "is no regular file", "cycle": "depends on itself", "key": "chmod 600"}
    for name, sentence in sentences.items():
        refused = routetune("tune", tmp_path / f"{name}.toml")
        assert refused.returncode == 2, refused.stderr
        assert sentence in refused.stderr
        assert "Traceback" not in refused.stderr


QUICK = """
[budget]
trials = 2
[timing]
seconds = 0.1
loads = 2
[publish]
sign_key = "ours.pem"
"""


@pytest.mark.slow
def test_a_tune_signs_what_it_publishes_and_what_stays(
    tmp_path: Path, store_folder: Path, routetune: Command, prefect_url: str
) -> None:
    (_, public), (other_private, other) = key_pair(tmp_path, "ours"), key_pair(tmp_path, "theirs")
    target = write_target(tmp_path)
    target.write_text(target.read_text() + QUICK)
    done = routetune("tune", target, PREFECT_API_URL=prefect_url)
    assert done.returncode == 0, done.stderr
    path = load_current(store_folder, "plus", require_signature=[public]).path
    with pytest.raises(Untrusted, match="is signed by key"):
        load_current(store_folder, "plus", require_signature=[other])
    # With another key, from the environment, what wins again is signed too; the old signature still counts.
    target.write_text(target.read_text().replace('sign_key = "ours.pem"', ""))
    variables = {"PREFECT_API_URL": prefect_url, "ROUTETUNE_SIGN_KEY": str(other_private)}
    again = routetune("tune", target, "--force", **variables)
    assert again.returncode == 0, again.stderr
    now = load_current(store_folder, "plus", require_signature=[other])
    if now.path == path:
        assert load_current(store_folder, "plus", require_signature=[public]).path == path
