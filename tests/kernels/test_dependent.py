"""No kernel forgets to wait for the one before it: found in the sources, because on a GPU it would show but rarely."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import strata.kernels

ROOT = Path(strata.kernels.__path__[0])
TREES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
BEGINS, WAITS = "begin_dependent", "wait_for_predecessor"
WRITES = {"store", "atomic_add", "atomic_max", "atomic_min", "atomic_or", "atomic_cas", "atomic_xchg"}


@dataclass(frozen=True)
class Jitted:
    """A function that Triton compiles."""

    file: str
    node: ast.FunctionDef

    @property
    def name(self) -> str:
        """As `file: function`."""
        return f"{self.file}: {self.node.name}"


def jitted() -> Iterator[Jitted]:
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and any("jit" in ast.dump(each) for each in node.decorator_list):
                yield Jitted(file, node)


def called(node: ast.AST) -> set[str]:
    """Names of the functions called in a statement: `f` and `module.f` alike."""
    functions = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
    plain = {each.id for each in functions if isinstance(each, ast.Name)}
    return plain | {each.attr for each in functions if isinstance(each, ast.Attribute)}


@cache
def waiting_functions() -> set[str]:
    """Functions that wait whatever their arguments are, themselves or by what they call."""
    functions = list(jitted())
    found, before = {BEGINS, WAITS}, 0
    while len(found) != before:
        before = len(found)
        found |= {each.node.name for each in functions if wait_of(each, found) is not None}
    return found


def wait_of(function: Jitted, waiting: set[str]) -> int | None:
    """Which statement of a function waits."""
    return next((index for index, each in enumerate(function.node.body) if always_waits(each, waiting)), None)


def always_waits(statement: ast.stmt, waiting: set[str]) -> bool:
    """Not in one branch alone, nor in a loop, which may have no turn."""
    if isinstance(statement, ast.If):
        return all(any(always_waits(each, waiting) for each in body) for body in (statement.body, statement.orelse))
    return not isinstance(statement, ast.For | ast.While) and bool(called(statement) & waiting)


def launched(tree: ast.AST) -> set[str]:
    """Names of what stands before brackets, as a kernel does before its grid: `f[grid]` and `module.f[grid]` alike."""
    values = [each.value for each in ast.walk(tree) if isinstance(each, ast.Subscript)]
    plain = {each.id for each in values if isinstance(each, ast.Name)}
    return plain | {each.attr for each in values if isinstance(each, ast.Attribute)}


KERNELS = [each for each in jitted() if each.node.name.endswith("_kernel")]
LAUNCHING = {file for file, tree in TREES.items() if launched(tree) & {each.node.name for each in KERNELS}}
# Long kernels of prompts alone, which gain nothing from an early start: launched in the ordinary way, each begins when
# the one before it has ended.
ORDINARY = ("attention_read/", "delta_read/", "read_streams/")
BETWEEN_WINDOWS = ("cell_pages/triton.py: copy_kernel",)  # likewise, in a file whose other kernels are a window's
DEPENDENT = [each for each in KERNELS if not each.name.startswith((*ORDINARY, *BETWEEN_WINDOWS))]


@pytest.mark.parametrize("kernel", DEPENDENT, ids=lambda kernel: kernel.name)
def test_every_kernel_waits_in_every_program_before_it_writes(kernel: Jitted) -> None:
    waiting = waiting_functions()
    index = wait_of(kernel, waiting)
    assert index is not None, f"{kernel.name} calls neither {BEGINS} nor {WAITS}"
    before = set().union(*(called(statement) for statement in kernel.node.body[:index]))
    assert not before & WRITES, f"{kernel.name} writes before it waits"
    if BEGINS in called(kernel.node.body[index]):
        assert "load" not in before, f"{kernel.name} reads before {BEGINS}"


@pytest.mark.parametrize("file", sorted(LAUNCHING))
def test_every_file_that_launches_kernels_does_so_as_dependents(file: str) -> None:
    assert ("dependent_options" in called(TREES[file])) is not file.startswith(ORDINARY)


@pytest.mark.parametrize(
    ("source", "waits"),
    [
        ("begin_dependent()", True),
        ("if x: begin_dependent()", False),
        ("if x: begin_dependent()\nelse: helper()", True),
        ("for _ in range(x): begin_dependent()", False),
        ("tl.store(x, 1)", False),
    ],
)
def test_a_statement_that_waits_only_sometimes_is_found(source: str, waits: bool) -> None:
    assert always_waits(ast.parse(source).body[0], {BEGINS, WAITS, "helper"}) is waits


def test_a_process_can_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from strata.kernels import dependent, roads

    monkeypatch.setattr(dependent, "HAS_DEPENDENT_LAUNCHES", False)
    assert dependent.dependent_options() == {}
    monkeypatch.setattr(dependent, "HAS_DEPENDENT_LAUNCHES", True)
    assert dependent.dependent_options() == {"launch_pdl": True}
    roads.use_dependent_launches(False)
    assert dependent.dependent_options() == {}
    roads.use_dependent_launches(True)
    assert dependent.dependent_options() == {"launch_pdl": True}
