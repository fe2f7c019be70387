"""Keys of entries: one visible dict a stage, with the digest of the code that does its work."""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from routetune.tasks.errors import BadInput
from routetune.tasks.parsing import parse

#: Raised by hand when the meaning of keys changes; it makes every earlier entry a miss.
SCHEMA = 1

#: Keeping a result does not shape it, and the files of the store have schemas of their own.
_WITHOUT = ("routetune.tasks.store",)
_RESERVED = ("stage", "schema", "code")
_TYPE_CHECKING = ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def stage_key(stage: str, /, *, code: str | None = None, **parts: Any) -> dict[str, Any]:
    """The whole key of one result of `stage`: {"stage", "schema", "code", and each of `parts`}.

    Args:
        stage: "build", "accuracy", ...
        code: digest of the code that does the work; by default that of the module
            `routetune.tasks.<stage>`, without the store.
        parts: everything that decides the result, as plain JSON.

    Returns:
        A dict of its own: what is changed in `parts` afterwards does not change the key.

    Raises:
        BadInput: a part is not plain JSON, or has a name that the key itself uses. Guessing a text for such a
            value would give one value the result of another.
    """
    for name in _RESERVED:
        if name in parts:
            raise BadInput(f"part {name!r} of the key of stage {stage!r} is set by the key itself: rename it")
    where = f"key of stage {stage!r}: part "
    plain = {name: _plain(value, f"{where}{name}") for name, value in parts.items()}
    return {
        "stage": stage,
        "schema": SCHEMA,
        "code": code or stage_code(stage),
        **plain,
    }


def stage_code(stage: str) -> str:
    """Digest of the code of a stage and its helpers, without the store. Raises BadInput: no such stage."""
    return code_digest(f"routetune.tasks.{stage}", without=_WITHOUT)


@cache
def code_digest(module: str, prefix: str | None = None, without: tuple[str, ...] = ()) -> str:
    """Digest of the source of `module` and of every module below `prefix` that it imports, however deeply.

    Comments, docstrings and formatting do not count; constants, helpers and the order of statements do.
    Imports inside functions count, and so do names of modules in strings ("package.module:Class"), since
    those are imported by name. Imports for type checkers only do not. Kept for the life of the process, like
    the code itself.

    Args:
        module: full name; it is looked up but not imported.
        prefix: the package whose modules count; by default the first part of `module`.
        without: modules and packages that do not count, nor what only they import.

    Raises:
        BadInput: there is no such module, or it has no Python source.
    """
    prefix = prefix or module.partition(".")[0]
    seen: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        source = _source(name)
        if source is None:
            if name == module:
                raise BadInput(f"module {module!r} has no Python source, so results of it cannot be kept")
            continue
        package = name if source.name == "__init__.py" else name.rpartition(".")[0]
        seen[name], imports = _read(source.read_bytes(), str(source), package, prefix)
        waiting += [
            found
            for found in imports
            if found not in seen and not any(_is_in(found, left_out) for left_out in without)
        ]
    lines = "\n".join([module, *(f"{name} {seen[name]}" for name in sorted(seen))])
    return hashlib.sha256(lines.encode()).hexdigest()


@cache
def _read(content: bytes, path: str, package: str, prefix: str) -> tuple[str, tuple[str, ...]]:
    """Digest of what one source means, and what it imports. Stages share most of their modules, and a process
    asks for the digests of half a dozen: each source is parsed for the first of them."""
    tree = _meaning(parse(content, path))
    digest = hashlib.sha256(ast.unparse(tree).encode("utf-8", "surrogatepass")).hexdigest()
    return digest, tuple(dict.fromkeys(_imports(tree, package, prefix)))


def _plain(value: Any, where: str) -> Any:
    """A copy of `value`. Exact types only: a subclass may hold more than its text shows."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        if value - value != 0.0:
            raise BadInput(f"{where} is {value}, which JSON cannot hold: write it through canonical.number")
        return value
    if kind in (list, tuple):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if kind is dict:
        for name in value:
            if type(name) is not str:
                raise BadInput(f"{where} has a key of type {_type_name(name)}: expected a plain str")
        return {name: _plain(item, f"{where}[{name!r}]") for name, item in value.items()}
    raise BadInput(
        f"{where} is of type {_type_name(value)}: expected plain JSON (None, bool, int, float, str, list, "
        "dict); pass the plain values that decide the result, or the digest of a file"
    )


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _source(module: str) -> Path | None:
    """The source file of a module, or None when it is no module or has none (a namespace, an extension)."""
    loader = getattr(_spec(module), "loader", None)
    return Path(loader.path) if isinstance(loader, importlib.machinery.SourceFileLoader) else None


@cache
def _spec(module: str) -> importlib.machinery.ModuleSpec | None:
    # Not importlib.util.find_spec: it imports the parents, and "module.name" has the module as its parent.
    parent = module.rpartition(".")[0]
    places = None
    if parent:
        above = _spec(parent)
        if above is None or above.submodule_search_locations is None:
            return None
        places = list(above.submodule_search_locations)
    specs = (finder.find_spec(module, places) for finder in sys.meta_path)
    return next((spec for spec in specs if spec is not None), None)


class _Meaning(ast.NodeTransformer):
    """Leaves out what running the code does not see: docstrings and imports for type checkers."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return node

    def visit_If(self, node: ast.If) -> ast.AST | None:
        if ast.unparse(node.test) in _TYPE_CHECKING:
            if not node.orelse:
                return None
            node.body = [ast.Pass()]
        return self.generic_visit(node)


def _meaning(tree: ast.Module) -> ast.Module:
    _Meaning().visit(tree)
    return tree


def _imports(tree: ast.Module, package: str, prefix: str) -> Iterator[str]:
    """Names below `prefix` that the code imports, each with the packages above it, since those run first."""
    for node in ast.walk(tree):
        for name in _named(node, package):
            if _is_in(name, prefix):
                parts = name.split(".")
                yield from (".".join(parts[: length + 1]) for length in range(len(parts)))


def _is_in(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def _named(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        yield base
        # What is imported from a package may be a module of it; names that are not are no module's source.
        yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        named = re.fullmatch(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?::\w+)?", node.value)
        if named:
            yield named[1]
