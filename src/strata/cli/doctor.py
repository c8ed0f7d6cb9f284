"""`strata doctor`: what this PC is and gives, and what Strata would do here with a model.

Knows how it looks; facts and measurements come from `strata.bench.doctor`, the plan from `strata.engine`.
"""

import json
from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strata import __version__, models_shipped
from strata.bench.ceilings import Ceilings, PinProbe
from strata.bench.doctor import Examination, NativePaths, examine
from strata.bench.table_rows import TableSpeed, in_words, measure_tables
from strata.cli.bench_kernels import doubled_up_to
from strata.cli.card_answer import CardAnswer, ask_card
from strata.cli.console import printable, progress_bar
from strata.cli.flags import FLAT, EngineFlags, GivenPath, said
from strata.cli.memory_plan import costs_table, stages_as_json, stages_sentence, stages_table
from strata.cli.model_report import ModelReport, gib, make_report
from strata.engine.cpu_loading import fitting_threads
from strata.engine.memory_plan import Place
from strata.engine.plan_parts import EXPERTS
from strata.engine.slot_costs import slot_costs
from strata.engine.stage_plans import StagePlans
from strata.errors import SettingsError
from strata.kernels.compiled import CachedKernels
from strata.settings import kernel_cache_folder, resolve
from strata.weights.opening import has_weights, open_model


def doctor(
    *,
    model: GivenPath | None = None,
    limit_s: float = 30.0,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
    engine: Annotated[EngineFlags | None, FLAT] = None,
) -> None:
    """Look at this PC, measure its memories, and say what strata would do here with a model.

    Parameters
    ----------
    model
        A model directory or GGUF file; the small model that ships with strata if not given. Its headers are read.
    limit_s
        Seconds after which no measurement is begun.
    as_json
        Print everything as one JSON object; sizes in bytes, rates in 10^9 bytes a second.
    """
    if not limit_s >= 0:
        raise SettingsError(f"--limit-s {limit_s:g} does not work; a number of seconds of at least 0 does")
    settings = resolve(said(engine)).engine
    path = model or models_shipped.default_path()
    report = make_report(path, settings.context, settings)  # refused before anything is measured
    card = ask_card(path, settings, report.hardware)
    threads = doubled_up_to(report.hardware.cpu.usable_cores)
    with progress_bar() as progress:
        found = examine(threads, limit_s, kernel_cache_folder(settings), progress)
    tables = measure_tables(open_model(path)) if limit_s and has_weights(path) else None
    if as_json:
        print(json.dumps(examination_as_json(found, report, card, tables), indent=2))
    else:
        show(found, report, card, tables, Console(highlight=False))


def show(
    found: Examination, report: ModelReport, card: CardAnswer, tables: TableSpeed | None, console: Console
) -> None:
    """Print facts, measurements and advice."""
    facts = Table.grid(padding=(0, 2))
    for label, value in (*_facts(found), *_measured(found.ceilings)):
        facts.add_row(Text(label, style="cyan"), Text(printable(value)))
    console.print(facts)
    console.print(Text(f"\nWith {printable(report.path)}:", style="bold"), soft_wrap=True)
    if card.plans is not None:
        console.print(stages_table(card.plans))
        if card.plans.refusal is None:
            console.print(costs_table(slot_costs(card.plans)))
    told = advice(found, report, card) + ("" if tables is None else f" {in_words(tables)}")
    console.print(Text(printable(told)), soft_wrap=True)


def advice(found: Examination, report: ModelReport, card: CardAnswer) -> str:
    """What strata would do with the model, in a few sentences."""
    if card.plans is not None and card.is_used:
        where = "On the card" if card.plans.split.stages == 1 else "On its stages"
        return f"{where}: {stages_sentence(card.plans)}.{_pinning(card.plans, found.ceilings.pinned)}"
    why = _sentence(card.problem or "torch sees no GPU")
    if not report.verdict.can_run:
        return f"{why}. {report.verdict.sentence}"
    threads = fitting_threads(report.config["hidden_size"])
    count = "1 thread" if threads == 1 else f"{threads} threads"
    worth = found.ceilings.threads_worth_using
    more = f" (memory gets no faster beyond {worth})" if worth is not None and threads > worth else ""
    return f"{why}. It would run on the processor with {count}{more}. {report.verdict.sentence}"


def _pinning(plans: StagePlans, probe: PinProbe | None) -> str:
    """What pinning main memory for the experts would come to, as far as it was tried; nothing where none lie there."""
    parts = (part for plan in plans.plans for part in plan.parts)
    size = sum(part.size for part in parts if part.place is Place.RAM and part.name == EXPERTS)
    if not size or probe is None:
        return ""
    if probe.was_refused and probe.size < size:
        return (
            f" The system pins {gib(probe.size)} of the {gib(size)} of experts in main memory and no more: the card "
            "would read none in place (`ulimit -l unlimited` helps)."
        )
    if not probe.size:
        return ""
    return f" Pinning the {gib(size)} of experts in main memory would take {size / probe.size * probe.seconds:.0f} s."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _facts(found: Examination) -> list[tuple[str, str]]:
    cpu, memory = found.hardware.cpu, found.hardware.memory
    sets = ", ".join(cpu.instruction_sets) or "no vector instructions that strata uses"
    limit = f", limited to {gib(memory.limit)}" if memory.limit is not None else ""
    versions = {"strata": __version__, **found.versions}
    lines = [
        (
            "processor",
            f"{cpu.model}: {cpu.physical_cores} cores, {cpu.logical_cores} threads, {cpu.usable_cores} usable",
        ),
        ("", sets),
        ("C++ library", _native(found.native)),
        ("memory", f"{gib(memory.total)}{limit}, {gib(memory.usable)} free"),
    ]
    for node in found.nodes if len(found.nodes) > 1 else ():
        lines.append((f"  node {node.number}", f"{gib(node.memory_bytes)}, processors {node.processors}"))
    lines += _cards(found)
    cache = found.kernel_cache
    held = f"{len(cache.names):,} kernels, {gib(cache.total_bytes)}" if cache.names else "no compiled kernel"
    lines.append(("kernel cache", f"{held} in {cache.folder}"))
    lines.append(("versions", ", ".join(f"{name} {version or 'none'}" for name, version in versions.items())))
    return lines


def _cards(found: Examination) -> list[tuple[str, str]]:
    lines = []
    for gpu in found.hardware.gpus:
        major, minor = gpu.compute_capability
        link = f", PCIe {gpu.pcie_generation} x {gpu.pcie_width}" if gpu.pcie_generation and gpu.pcie_width else ""
        size = f"{gib(gpu.total_bytes)}, {gib(gpu.free_bytes)} free"
        lines.append(("card", f"{gpu.name}: {size}, compute {major}.{minor}{link}"))
    if not lines:
        return [("card", "none that torch can use")]
    return [*lines, ("driver", f"{found.gpu_driver or 'unknown'}, CUDA {found.cuda_runtime or 'unknown'}")]


def _native(native: NativePaths) -> str:
    if native.problem is not None:
        return native.problem
    others = ", ".join(name for name in native.available if name != native.in_use)
    return f"computes with {native.in_use}" + (f"; could with {others}" if others else "")


def _measured(found: Ceilings) -> list[tuple[str, str]]:
    lines = []
    if found.ram_gb_per_s:
        speeds = ", ".join(f"{threads}: {rate:.1f}" for threads, rate in found.ram_gb_per_s.items())
        lines.append(("RAM GB/s", f"by threads {speeds}; worth using: {found.threads_worth_using}"))
    if found.card is not None:
        card = found.card
        lines.append(("card GB/s", f"copy to it {card.copy_to_card:.1f}, reads in place {card.read_in_place:.1f}"))
        lines.append(("VRAM GB/s", f"copy {card.vram_copy:,.0f}, read {card.vram_read:,.0f}"))
    if found.pinned is not None:
        pinned = found.pinned
        end = "then the system refused more" if pinned.was_refused else "more was not tried"
        lines.append(("pinned", f"{gib(pinned.size)} in {pinned.seconds:.1f} s; {end}"))
    if found.skipped:
        lines.append(("no time for", ", ".join(found.skipped)))
    return lines


def examination_as_json(
    found: Examination, report: ModelReport, card: CardAnswer, tables: TableSpeed | None
) -> dict[str, Any]:
    """Everything as plain values."""
    memory = found.hardware.memory
    return {
        "strata": __version__,
        **asdict(found),
        "hardware": {**asdict(found.hardware), "memory": {**asdict(memory), "usable": memory.usable}},
        "kernel_cache": _cache_as_json(found.kernel_cache),
        "ceilings": {**asdict(found.ceilings), "threads_worth_using": found.ceilings.threads_worth_using},
        "model": {
            "path": report.path,
            "runs_on_the_card": card.is_used,
            "plan": None if card.plans is None else stages_as_json(card.plans),
            "can_run_on_the_processor": report.verdict.can_run,
            "advice": advice(found, report, card),
            "table_rows": None if tables is None else asdict(tables),
        },
    }


def _cache_as_json(cache: CachedKernels) -> dict[str, Any]:
    return {"folder": str(cache.folder), "kernels": len(cache.names), "bytes": cache.total_bytes}
