"""Publications as earlier versions wrote them. No folder is written anew: a new schema adds one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from routetune.tasks.report.summary import headline, published
from routetune.tasks.store import manifests, open_store
from routetune.tasks.store.loader import load_current

SCHEMAS = sorted(Path(__file__).parent.glob("schema*"))


@pytest.mark.parametrize("kept", SCHEMAS, ids=lambda path: path.name)
def test_what_an_earlier_version_published_is_loaded_shown_verified_and_built_upon(tmp_path, kept):
    store = open_store(tmp_path / "store")
    shutil.copytree(kept / "publications", store.root / "publications")
    (environment,) = store.publications.environments("plus")
    current = store.publications.current("plus", environment)
    assert current.manifest["schema"] == int(kept.name.removeprefix("schema"))
    assert store.publications.verify("plus", environment) == []
    fields = current.manifest["bound_to"]["environment"]
    loaded = load_current(store.root, "plus", today=fields, strict=True)
    assert loaded.path == current.engine and loaded.options == current.manifest["options"]
    assert published(current)["route"] == current.manifest["route"] and headline(published(current))

    digest = store.blobs.put_file(current.engine)
    given = {name: current.manifest[name] for name in ("bound_to", "options", "route")}
    newer = store.publications.publish("plus", environment, digest, given)
    assert newer.manifest["schema"] == manifests.SCHEMA
    assert store.publications.rollback("plus", environment) == current
    before = store.publications.rollback("plus", environment)
    assert before.reference.generation == 1
    assert load_current(store.root, "plus").path == before.engine


@pytest.mark.parametrize("kept", SCHEMAS, ids=lambda path: path.name)
def test_its_engine_still_runs(tmp_path, kept):
    """On any machine: a CPU with other instruction sets would be refused only when they are compared."""
    shutil.copytree(kept / "publications", tmp_path / "publications")
    code = (
        "import sys, numpy; from routetune.tasks.store.loader import load_current\n"
        "from routetune.tasks.service import load_runner\n"
        "runner = load_runner(load_current(sys.argv[1], 'plus'))\n"
        "print(runner.infer({'x': numpy.zeros(4, numpy.float32)})['y'].tolist())\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert done.stdout == "[1.0, 1.0, 1.0, 1.0]\n", done.stderr
