"""Reads the package's sources with ast: its modules and what each imports, at the top or inside a function.

Knows no rule; the rules are in the tests beside it.
"""

import ast
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "strata"
SKIPPED_FOLDERS = {"build", "dist", "__pycache__", "node_modules"}  # and hidden ones: caches, environments, the history
OUR_HIDDEN_FOLDERS = {".ci"}


@dataclass(frozen=True)
class Import:
    """One import statement's target: a dotted module name and where it stands."""

    target: str
    line: int
    at_top: bool  # runs when the module is imported
    for_types_only: bool  # under `if TYPE_CHECKING:`


def files(root: Path = ROOT, *suffixes: str) -> Iterator[Path]:
    """The repository's own files below `root` whose names end with one of the suffixes (all if none is given)."""
    for folder, inner, names in os.walk(root):
        hidden = {name for name in inner if name.startswith(".")} - OUR_HIDDEN_FOLDERS
        inner[:] = sorted(set(inner) - hidden - SKIPPED_FOLDERS)
        for name in sorted(names):
            if not suffixes or name.endswith(suffixes):
                yield Path(folder, name)


def module_name(path: Path) -> str:
    """src/strata/engine/reader.py -> engine.reader; a package's __init__.py is named by its folder."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its name below `strata`."""
    return {module_name(path): path for path in files(PACKAGE, ".py")}


def part_of(module: str) -> str:
    """The part of the house that a module belongs to: the first word of its name."""
    return module.split(".")[0]


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """Every import of a file; `from strata.x import y` is x.y if that is a module."""
    return tuple(_walk(ast.parse(path.read_text("utf-8")).body, at_top=True, for_types_only=False))


@cache
def strata_imports(path: Path) -> tuple[Import, ...]:
    """The imports of a file that name this package, without the leading `strata.`."""
    return tuple(_of_strata(imports(path)))


def _of_strata(found_in_file: tuple[Import, ...]) -> Iterator[Import]:
    for found in found_in_file:
        if found.target == "strata" or found.target.startswith("strata."):
            inner = found.target.removeprefix("strata").lstrip(".") or "__init__"
            yield Import(_to_module(inner), found.line, found.at_top, found.for_types_only)


def _to_module(name: str) -> str:
    """The longest prefix of a dotted name that is a module: `errors.StrataError` -> `errors`."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        prefix = ".".join(parts[:length])
        if prefix in modules():
            return prefix
    return "__init__" if len(parts) == 1 else name


def _walk(body: list[ast.stmt], at_top: bool, for_types_only: bool) -> Iterator[Import]:
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, at_top, for_types_only)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            for alias in node.names:
                yield Import(f"{node.module}.{alias.name}", node.lineno, at_top, for_types_only)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for field in ("body", "orelse", "finalbody", "handlers", "cases"):
                inner = getattr(node, field, [])
                statements = [s for s in inner if isinstance(s, ast.stmt)]
                for holder in inner:
                    statements += getattr(holder, "body", []) if not isinstance(holder, ast.stmt) else []
                typed = for_types_only or (types and field == "body")
                yield from _walk(statements, at_top and not inside, typed)
