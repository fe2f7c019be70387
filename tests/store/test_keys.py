from __future__ import annotations

import itertools
import sys

import pytest
from routetune.tasks.errors import BadInput
from routetune.tasks.store import keys
from routetune.tasks.store.keys import code_digest, stage_key
from routetune.tasks.trial import Outcome

# A stage in a package of its own: what it uses lies in other modules, some imported where they are used.
MODULES = {
    "__init__.py": "",
    "stage.py": '''
"""What it does."""
from __future__ import annotations
from typing import TYPE_CHECKING
import {package}.rooms.losses as losses
if TYPE_CHECKING:
    from .rooms.unused import Shape
class Stage:
    def run(self, x: Shape):
        """Runs."""
        from {package}.late import helper
        return helper(losses.loss(x))
''',
    "late.py": "import {package}.constants as c\ndef helper(x):\n    return x * c.FACTOR\n",
    "constants.py": "FACTOR = 2\n",
    "rooms/__init__.py": "from . import shared\n",
    "rooms/shared.py": "EPS = 1e-9\n",
    "rooms/losses.py": "from ..engines import open_backend\ndef loss(x):\n    return open_backend(x)\n",
    "rooms/unused.py": "class Shape: ...\n",
    "engines.py": "KNOWN = {{'a': '{package}.backend:Backend'}}\ndef open_backend(name): return KNOWN\n",
    "backend.py": "class Backend:\n    level = 'all'\n",
    "other.py": "X = 1\n",
}
_names = itertools.count()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write the package, under a name of its own; returns what edits a file and gives the digest."""
    name = f"staged{next(_names)}"
    for path, text in MODULES.items():
        file = tmp_path / name / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(text.format(package=name))
    monkeypatch.syspath_prepend(tmp_path)

    def digest(path=None, old="", new=""):
        if path:
            file = tmp_path / name / path
            text = file.read_text()
            assert old in text
            file.write_text(text.replace(old, new, 1))
        code_digest.cache_clear()
        return code_digest(f"{name}.stage")

    digest.name = name
    return digest


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("stage.py", "losses.loss(x)", "losses.loss(x + 1)"),
        ("late.py", "x * c", "x + c"),  # imported inside a method
        ("constants.py", "2", "3"),  # a constant, two modules away
        ("constants.py", "2", "2.0"),
        ("rooms/__init__.py", "from", "ORDER = 1\nfrom"),  # runs before its modules do
        ("rooms/shared.py", "1e-9", "1e-8"),  # imported by a package
        ("rooms/losses.py", "return", "return not"),
        ("engines.py", "'a'", "'b'"),
        ("backend.py", "'all'", "'basic'"),  # named only in a string
    ],
)
def test_a_change_of_a_helper_or_constant_moves_the_digest(package, path, old, new):
    """G44."""
    before = package()
    assert package() == before
    assert package(path, old, new) != before
    assert package(path, new, old) == before


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("stage.py", "class Stage", "# a remark\n\n\nclass Stage"),
        ("stage.py", "What it does", "What it really does"),
        ("stage.py", '        """Runs."""\n', ""),
        ("late.py", "x * c.FACTOR", "(x\n            *c . FACTOR)"),
        ("constants.py", "2", "(2)  # twice"),
        ("engines.py", "'a'", '"a"'),
        ("rooms/unused.py", "...", "a: int"),  # only a type
        ("stage.py", "    from .rooms.unused import Shape", "    from .other import Shape"),
        ("other.py", "1", "2"),  # nobody imports it
    ],
)
def test_comments_formatting_and_unused_modules_do_not(package, path, old, new):
    assert package() == package(path, old, new)


def test_what_is_left_out_does_not_count_nor_what_only_it_imports(package):
    def digest(*edit):
        package(*edit)
        return code_digest(f"{package.name}.stage", without=(f"{package.name}.rooms",))

    before = digest()
    assert digest("rooms/losses.py", "return", "return not") == before
    assert digest("backend.py", "'all'", "'basic'") == before
    assert digest("constants.py", "2", "3") != before


def test_looking_at_code_does_not_run_it(package):
    package("late.py", "def", "raise SystemExit('imported')\ndef")
    assert not [name for name in sys.modules if name.startswith(package.name)]


def test_kept_for_the_life_of_the_process(package, tmp_path):
    before = package()
    (tmp_path / package.name / "constants.py").write_text("FACTOR = 5\n")
    # The running process holds the earlier code, so its results are that code's.
    assert code_digest(f"{package.name}.stage") == before


def test_a_source_is_parsed_once_however_many_digests_it_is_part_of(package, tmp_path, monkeypatch):
    parsed = []
    parse = keys.parse
    monkeypatch.setattr(keys, "parse", lambda content, path: parsed.append(path) or parse(content, path))
    digests = [package(), code_digest(f"{package.name}.rooms"), code_digest(f"{package.name}.engines")]
    assert len(set(digests)) == 3
    assert sorted(parsed) == sorted(set(parsed)) and len(parsed) == len(MODULES) - len(("unused", "other"))
    package("constants.py", "2", "3")
    assert parsed.count(str(tmp_path / package.name / "constants.py")) == 2, "other bytes are read anew"


def test_our_own_modules(monkeypatch):
    code_digest.cache_clear()
    assert code_digest("routetune.tasks.store") == code_digest("routetune.tasks.store")
    assert code_digest("routetune.tasks.store") != code_digest("routetune.tasks.store.blobs")
    assert code_digest("routetune.tasks.store.names", "routetune.tasks.store") != code_digest(
        "routetune.tasks.store.names"
    )
    for absent in ("routetune.tasks.nowhere", "sys", "routetune"):
        with pytest.raises(BadInput, match=f"module '{absent}' has no Python source"):
            code_digest(absent)


class Moody:
    def __init__(self, value):
        self.value = value

    def __getstate__(self):
        raise RuntimeError("not today")


class Hidden(str):
    """A string with more to it than its text."""


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (Moody(1), "Moody"),
        (Moody(2), "Moody"),
        ({"deep": [1, {"er": Moody(1)}]}, r"atol\['deep'\]\[1\]\['er'\] is of type .*Moody"),
        (float("nan"), "canonical.number"),
        ([0.0, float("inf")], r"atol\[1\] is inf"),
        (Hidden("a"), "Hidden"),
        (Outcome.FAILED, "Outcome"),
        (b"bytes", "bytes"),
        ({1, 2}, "set"),
        ({1: "a"}, "key of type builtins.int"),
        ({Hidden("a"): 1}, "key of type .*Hidden"),
        (lambda: 0, "function"),
        (1j, "complex"),
    ],
)
def test_a_part_that_is_not_plain_json_is_refused_by_name(value, what):
    """G45: two values whose pickling raises are refused both, and neither gets the other's result."""
    with pytest.raises(BadInput, match=rf"key of stage 'accuracy': part atol.*{what}|{what}"):
        stage_key("accuracy", code="0" * 64, engine="e", atol=value)


def test_a_key_is_one_visible_dict_of_its_own():
    shapes = {"x": [1, (2, 3)]}
    key = stage_key("accuracy", code="0" * 64, shapes=shapes, none=None, flag=True, loss=1e-5)
    shapes["x"].append(4)
    assert key == {
        "stage": "accuracy",
        "schema": 1,
        "code": "0" * 64,
        "shapes": {"x": [1, [2, 3]]},
        "none": None,
        "flag": True,
        "loss": 1e-5,
    }
    with pytest.raises(BadInput, match=r"'schema' .* is set by the key itself"):
        stage_key("accuracy", code="0" * 64, schema=2)
    with pytest.raises(BadInput, match=r"routetune\.tasks\.nowhere"):
        stage_key("nowhere", x=1)
