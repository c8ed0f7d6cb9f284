"""Imports point down the layers of the house, and what must not know torch does not."""

import pytest

from tests.house.layers import LAYER_OF, SCHEDULER_KNOWS, WITHOUT_TORCH, may_import
from tests.house.source_tree import imports, modules, part_of, strata_imports


def test_every_part_of_the_package_has_a_layer() -> None:
    unknown = {part_of(module) for module in modules()} - set(LAYER_OF)
    assert not unknown, f"give {sorted(unknown)} a line in tests/house/layers.py and in docs/structure.md"


def test_imports_point_down() -> None:
    wrong = []
    for module, path in modules().items():
        for found in strata_imports(path):
            only_version = found.target == "__init__" and part_of(module) in ("cli", "server")
            if not only_version and not may_import(part_of(module), part_of(found.target)):
                wrong.append(f"strata.{module}, line {found.line}, imports strata.{found.target}")
    assert wrong == []


def reached_at_import(module: str) -> set[str]:
    """The module and all of ours that importing it imports; imports inside functions do not run then."""
    reached: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in reached or name not in modules():
            continue
        reached.add(name)
        tops = [i.target for i in strata_imports(modules()[name]) if i.at_top and not i.for_types_only]
        packages = [".".join(name.split(".")[:depth]) for depth in range(1, name.count(".") + 1)]
        waiting += tops + packages
    return reached


@pytest.mark.parametrize("start", WITHOUT_TORCH)
def test_deciding_parts_import_no_torch(start: str) -> None:
    ours = [name for name in modules() if name == start or name.startswith(start + ".")]
    for module in ours:
        for name in reached_at_import(module):
            for found in imports(modules()[name]):
                loads = found.at_top and not found.for_types_only and found.target.split(".")[0] == "torch"
                assert not loads, f"strata.{module} loads torch through strata.{name}, line {found.line}"


def test_scheduler_knows_no_engine_but_its_words() -> None:
    for module, path in modules().items():
        if part_of(module) == "scheduler":
            known = {found.target for found in strata_imports(path) if part_of(found.target) == "engine"}
            assert known <= set(SCHEDULER_KNOWS), f"strata.{module} imports {known - set(SCHEDULER_KNOWS)}"


def test_text_and_scheduler_never_meet() -> None:
    for module, path in modules().items():
        pair = {"text", "scheduler"}
        if part_of(module) in pair:
            met = {part_of(i.target) for i in strata_imports(path)} & (pair - {part_of(module)})
            assert not met, f"strata.{module} imports {met}"
