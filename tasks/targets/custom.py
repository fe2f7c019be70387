"""A metric of the user's own: where its source is and what it holds, found without running any of it.

The function is code that is executed, so it is imported in the worker process and nowhere else; here its
files are only read. Modules beside the target file come first; they count with every module there that they
import. Of an installed package the modules count that the function's own imports within the package.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import invalidate_caches
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from routetune.tasks import canonical
from routetune.tasks.errors import BadInput
from routetune.tasks.parsing import parse

if TYPE_CHECKING:
    from routetune.tasks.targets.schema import Target

#: Names that modules of ours and of the standard library have: the worker may have imported them already.
_TAKEN = frozenset(sys.stdlib_module_names) | {"routetune"}


@dataclass(frozen=True, slots=True)
class CustomMetric:
    """A function of the user's that gives the loss of an input set.

    Attributes:
        name: "module:function", as the target has it.
        folder: the target file's folder, where modules are looked for first.
        file: the module's own file.
        file_digest: SHA-256 of that file.
        digest: SHA-256 over every file that counts.
    """

    name: str
    folder: Path
    file: Path
    file_digest: str
    digest: str

    def to_order(self) -> dict[str, str]:
        """What the worker needs to import it."""
        return {
            "metric": self.name,
            "folder": str(self.folder),
            "file": str(self.file),
            "file_digest": self.file_digest,
        }


def custom_metric(target: Target) -> CustomMetric | None:
    """The target's own metric; None where it uses one that is built in.

    Raises:
        BadInput: the module is not there, is no Python source, has no such function, or has the name of a
            module of the standard library.
    """
    name = target.accuracy.metric
    if ":" not in name:
        return None
    module, _, function = name.partition(":")
    where = f"{target.path}: accuracy.metric = {name!r}"
    folder = target.path.parent.resolve()
    invalidate_caches()  # a file written a moment ago must be seen
    if module.partition(".")[0] in _TAKEN:
        raise BadInput(f"{where}: {module.partition('.')[0]!r} is a module of Python's own; rename yours")
    place = folder if _locate(module, [str(folder)]) else None
    file = _locate(module, [str(folder), *sys.path])
    if file is None:
        raise BadInput(
            f"{where}: there is no module {module!r}, neither in {folder} nor installed; put "
            f"{module.replace('.', '/')}.py beside the target file"
        )
    sources = _sources(module, file, place, where)
    if function not in _defined(sources[module][1]):
        raise BadInput(f"{where}: {file} defines no {function!r}")
    digests = {name: hashlib.sha256(text).hexdigest() for name, (_, text) in sorted(sources.items())}
    return CustomMetric(name, folder, file, digests[module], canonical.digest(digests))


def _locate(module: str, places: list[str]) -> Path | None:
    """The source file of a module, found without importing the packages above it."""
    found: Any = None
    for part in _prefixes(module):
        found = PathFinder.find_spec(part, places)
        if found is None:
            return None
        places = list(found.submodule_search_locations or [])
    loader = getattr(found, "loader", None)
    return Path(loader.path).resolve() if isinstance(loader, SourceFileLoader) else None


def _prefixes(module: str) -> Iterator[str]:
    parts = module.split(".")
    yield from (".".join(parts[: length + 1]) for length in range(len(parts)))


def _sources(module: str, file: Path, place: Path | None, where: str) -> Mapping[str, tuple[Path, bytes]]:
    """Module name -> file and bytes, of the module and whatever it imports that counts."""
    top = module.partition(".")[0]
    places = [str(place)] if place else list(sys.path)
    found: dict[str, tuple[Path, bytes]] = {}
    waiting = list(_prefixes(module))
    while waiting:
        name = waiting.pop()
        path = file if name == module else _locate(name, places)
        if name in found or path is None:
            continue
        try:
            text = path.read_bytes()
            tree = parse(text, str(path))
        except (OSError, SyntaxError, ValueError) as error:
            raise BadInput(f"{where}: {path} cannot be read as Python: {error}") from None
        found[name] = (path, text)
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        imported = (one for node in ast.walk(tree) for one in _imported(node, package))
        waiting += [
            part for one in imported if place or one.partition(".")[0] == top for part in _prefixes(one)
        ]
    return found


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        if base:
            yield base
        yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names if alias.name != "*")
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_name(node.value):
        yield node.value  # as importlib is told


def _is_name(text: str) -> bool:
    return all(map(str.isidentifier, text.split(".")))


def _defined(text: bytes) -> set[str]:
    """Names bound at the top of a module."""
    names: set[str] = set()
    for node in parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign):
            names.update(one.id for one in node.targets if isinstance(one, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names
