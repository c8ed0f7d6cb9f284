"""Commands for people with a GPU run on no machine of ours: what they read of their arguments is there to be read."""

import ast
from pathlib import Path

import pytest

from tests.house.source_tree import ROOT

COMMANDS = [
    path for path in sorted((ROOT / "tests" / "gpu").glob("*.py")) if "add_argument(" in path.read_text("utf-8")
]


def arguments(tree: ast.AST) -> set[str]:
    """Names under which a file's parser keeps its arguments."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            given = [keyword.value for keyword in node.keywords if keyword.arg == "dest"] or node.args[:1]
            names.add(str(ast.literal_eval(given[0])).lstrip("-").replace("-", "_"))
    return names


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_every_option_that_is_read_is_an_argument(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    read = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "options"
    }
    assert read <= arguments(tree)


def test_the_commands_are_found() -> None:
    windows = next(path for path in COMMANDS if path.stem == "windows")
    assert {"precompile", "no_dependent"} <= arguments(ast.parse(windows.read_text("utf-8")))
