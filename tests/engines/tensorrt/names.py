"""Every name of TensorRT's Python bindings that the backend uses, found by walking its source.

The backend keeps a convention: a variable that holds an object of TensorRT's is always called the same. Each
attribute of such a variable is a use, and so is each keyword of a call to one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from routetune.tasks.engines.tensorrt import knobs, tensors
from routetune.tasks.targets.schema import EngineSettings

PACKAGE = Path(knobs.__file__).parent
MODULES = ("build.py", "knobs.py", "library.py", "runner.py", "timing_cache.py")

#: Variable or attribute of self -> TensorRT's class; "" is the module itself.
VARIABLES = {
    "trt": "",
    "builder": "Builder",
    "config": "IBuilderConfig",
    "network": "INetworkDefinition",
    "parser": "OnnxParser",
    "error": "ParserError",
    "profile": "IOptimizationProfile",
    "tensor": "ITensor",
    "runtime": "Runtime",
    "engine": "ICudaEngine",
    "inspector": "EngineInspector",
    "cache": "ITimingCache",
    "self._context": "IExecutionContext",
    "library()": "",
}


class Use(NamedTuple):
    """A name: dotted from the module on; with a keyword of the call; and where it stands."""

    name: str
    keyword: str
    where: str


def used_names() -> list[Use]:
    """All uses in the backend's source and in its tables."""
    found = [use for module in MODULES for use in uses_in((PACKAGE / module).read_text(), module)]
    return sorted({*found, *_from_tables()})


def uses_in(source: str, where: str) -> Iterator[Use]:
    """The uses in one module's source."""
    for node in ast.walk(ast.parse(source)):
        place = f"{where}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Attribute) and (name := _dotted(node)):
            yield Use(name, "", place)
        if isinstance(node, ast.Call) and (name := _dotted(node.func)):
            yield from (Use(name, keyword.arg, place) for keyword in node.keywords if keyword.arg)
        if isinstance(node, ast.ClassDef):
            yield from _overridden(node, place)


def _dotted(node: ast.AST) -> str:
    """The name behind `variable.attribute...`, or ""."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and ast.unparse(node) not in VARIABLES:
        parts.insert(0, node.attr)
        node = node.value
    root = ast.unparse(node)
    if root not in VARIABLES or not parts or parts[0].startswith("__"):
        return ""
    # What is beyond an instance's own attribute is of another class: config.build_route.split.
    reach = parts if not VARIABLES[root] else parts[:1]
    told = [part for part in [VARIABLES[root], *reach] if part]
    return ".".join(told[: told.index("__members__")] if "__members__" in told else told)


def _overridden(node: ast.ClassDef, place: str) -> Iterator[Use]:
    """Methods that override those of a class of TensorRT's."""
    for base in node.bases:
        name = _dotted(base)
        if name:
            own = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            called = [part.name for part in own if part.name[0] != "_" and part.name != "take"]
            yield from (Use(f"{name}.{method}", "", place) for method in called)


def _from_tables() -> Iterator[Use]:
    for setting in knobs.SETTINGS:
        place = f"knobs.SETTINGS +{setting.name}"
        if setting.place == "flag":
            yield Use(f"BuilderFlag.{setting.attribute}", "", place)
            continue
        yield Use(f"IBuilderConfig.{setting.attribute}", "", place)
        for value in (setting.values or ()) if setting.enum else ():
            yield Use(f"{setting.enum}.{value.upper()}", "", place)
    for name in tensors.TYPES:
        yield Use(f"DataType.{name}", "", "tensors.TYPES")
    levels = EngineSettings.model_fields["hardware_compatibility"].annotation
    for level in levels.__args__:  # type: ignore[union-attr]
        yield Use(f"HardwareCompatibilityLevel.{level.upper()}", "", "schema: hardware_compatibility")
    yield Use("MemoryPoolType.WORKSPACE", "", "docs: memory_pools")
