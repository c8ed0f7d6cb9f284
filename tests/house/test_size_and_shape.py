"""A file is read in one sitting, a function fits a screen, a module says what it knows, and has tests."""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.house.source_tree import ROOT, files, modules

MOST_LINES_OF_A_FILE = 450
MOST_LINES_OF_A_FUNCTION = 70

# Modules without a test of their own, and why.
WITHOUT_OWN_TEST = {
    "__main__": "two lines; tests/cli runs it",
    "models.base": "a contract: every family's tests hold it",
    "models.config_fields": "test_qwen3_configs and test_qwen4_exp_config refuse every kind of field through it",
    "models.decoder": "test_qwen3_contract runs it in all three families, the oracle compares it",
    "models.decoder_config": "test_qwen3_configs",
    "models.decoder_weights": "the oracle loads every family through it",
    "models.qwen3_5_moe": "test_qwen3_configs, test_qwen3_contract and the oracle, through models.families",
    "models.qwen3_moe": "the same",
    "models.qwen3_next": "the same",
    "errors": "names only",
    "cli.reply": "test_generate and test_chat show every kind of reply with it",
    "engine.reader": "test_engine runs it with a model whose every answer is known",
    "engine.reply": "test_engine ends replies in every way",
    "engine.steps": "values only; tests/scheduler holds both sides to them",
    "engine.slot": "test_engine runs it",
    "engine.window": "test_engine runs it, drafts right and wrong; test_company with several slots",
    "sampling.draw": "values only: test_sampler compares them",
    "scheduler.counters": "test_scheduler reads its sums",
}

# A file may not say where it was written: folders of one machine, hosts of registries. (Brackets keep this list out.)
FORBIDDEN = re.compile(r"/w[o]rk/|/r[o]ot/|/h[o]me/[a-z]|p[y]pi\.org|pythonh[o]sted|n[p]mjs|d[e]b\.debian")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".cpp", ".h", ".json", ".yml", ".jinja", ".sh", ""}


def sources() -> list[Path]:
    folders = [ROOT / "src", ROOT / "tests", ROOT / "training"]
    return [path for folder in folders if folder.is_dir() for path in files(folder, ".py", ".cpp", ".h")]


def python_sources() -> list[Path]:
    return [path for path in sources() if path.suffix == ".py"]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@dataclass(frozen=True)
class Shape:
    """What is asked of one file's syntax."""

    is_silent: bool  # it holds something and says nothing about it
    long_functions: dict[str, int]  # name to lines


@cache
def shapes() -> dict[Path, Shape]:
    """Of every Python file; parsing all of them takes seconds."""
    return {path: _shape(path, ast.parse(path.read_text("utf-8"))) for path in python_sources()}


def _shape(path: Path, tree: ast.Module) -> Shape:
    long = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MOST_LINES_OF_A_FUNCTION:
                long[node.name] = lines
    is_silent = ast.get_docstring(tree) is None and bool(tree.body or path.name != "__init__.py")
    return Shape(is_silent, long)


@cache
def texts_of_tests(folder: Path) -> dict[str, str]:
    """Of a folder of tests, by path."""
    return {str(path): path.read_text("utf-8") for path in files(folder, ".py")} if folder.is_dir() else {}


def test_files_are_read_in_one_sitting() -> None:
    sizes = {name_of(path): len(path.read_text("utf-8").splitlines()) for path in sources()}
    assert {name: size for name, size in sizes.items() if size > MOST_LINES_OF_A_FILE} == {}


def test_functions_fit_a_screen() -> None:
    assert {name_of(path): shape.long_functions for path, shape in shapes().items() if shape.long_functions} == {}


def test_modules_open_with_what_they_know() -> None:
    assert [name_of(path) for path, shape in shapes().items() if shape.is_silent] == []


def test_every_module_has_a_test_in_the_folder_of_its_part() -> None:
    missing = []
    for module, path in modules().items():
        if path.name == "__init__.py" or module in WITHOUT_OWN_TEST:
            continue
        inside, _, name = module.rpartition(".")
        folder = ROOT / "tests" / module.split(".")[0] if inside else ROOT / "tests"
        tests = texts_of_tests(folder)
        word = re.compile(rf"strata\.{re.escape(module)}\b|from strata\.{re.escape(inside)} import .*\b{name}\b")
        named = any(Path(test).name.startswith(f"test_{name}") for test in tests)
        if not named and not any(word.search(text) for text in tests.values()):
            missing.append(module)
    assert not missing, f"no test in the folder of its part in tests/ knows {missing}"


def test_reasons_for_no_test_are_still_needed() -> None:
    gone = set(WITHOUT_OWN_TEST) - set(modules())
    assert not gone, f"WITHOUT_OWN_TEST names modules that are gone: {gone}"


def test_no_file_names_the_machine_it_was_written_on() -> None:
    found = []
    for path in files():
        if path.suffix in TEXT_SUFFIXES and path.stat().st_size < 1 << 20:
            try:
                text = path.read_text("utf-8")
            except UnicodeDecodeError:
                continue
            found += [f"{name_of(path)}: {match.group()}" for match in FORBIDDEN.finditer(text)]
    assert not found, "\n".join(found)
