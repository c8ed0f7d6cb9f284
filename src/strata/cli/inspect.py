"""`strata inspect`: what a model is, what it needs, and whether this PC can run it.

Knows how the facts look on a terminal; `model_report` finds them.
"""

import json
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strata import models_shipped
from strata.cli.card_answer import CardAnswer, ask_card
from strata.cli.console import printable
from strata.cli.flags import FLAT, EngineFlags, GivenPath, said
from strata.cli.memory_plan import costs_table, stages_as_json, stages_sentence, stages_table
from strata.cli.model_report import ModelReport, gib, make_report, packed_formats, parts_in_order, report_as_json
from strata.engine.slot_costs import slot_costs
from strata.errors import ModelError
from strata.models.needs import Part, Placement
from strata.settings import resolve
from strata.weights.directory import CONFIG_NAME


def inspect(
    path: GivenPath | None = None,
    /,
    *,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
    engine: Annotated[EngineFlags | None, FLAT] = None,
) -> None:
    """Say what a model is, what it needs and whether this PC can run it. Reads headers only, never the weights.

    Parameters
    ----------
    path
        A model directory or GGUF file, or a directory that holds only config.json; the model that ships with strata
        if not given.
    as_json
        Print everything as one JSON object with sizes in bytes.
    """
    settings = resolve(said(engine)).engine
    path = path or _shipped_model()
    report = make_report(path, settings.context, settings)
    card = CardAnswer(None, None)  # of a config alone nobody knows how its weights will be packed
    if report.stored.is_present:
        card = ask_card(path, settings, report.hardware)
    if as_json:
        print(json.dumps(_as_json(report, card), indent=2))
    else:
        show(report, card, Console(highlight=False))


def _shipped_model() -> Path:
    directory = models_shipped.default_path()
    if not (directory / CONFIG_NAME).is_file():
        raise ModelError("this copy of strata ships no model: name a directory, as in strata inspect DIRECTORY")
    return directory


def _as_json(report: ModelReport, card: CardAnswer) -> dict[str, Any]:
    """`can_run`: on the card or on the CPU."""
    plan = None if card.plans is None else stages_as_json(card.plans)
    can_run = card.is_used or report.verdict.can_run
    return {**report_as_json(report), "card": {"plan": plan, "problem": card.problem}, "can_run": can_run}


def show(report: ModelReport, card: CardAnswer, console: Console) -> None:
    """Print the report."""
    console.print(Text(printable(report.path), style="bold"), soft_wrap=True)
    facts = Table.grid(padding=(0, 2))
    for label, value in _facts(report):
        facts.add_row(Text(label, style="cyan"), Text(printable(value)))
    console.print(facts)
    console.print(_parameter_table(report))
    console.print(_needs_table(report))
    if card.plans is not None and card.is_used and card.plans.split.stages > 1:
        console.print(stages_table(card.plans))
        console.print(costs_table(slot_costs(card.plans)))
    console.print(
        Text(
            f"State is that of one conversation of {report.context:,} tokens. On the CPU everything is held in "
            f"{report.dtype}. The last two columns are the least that a card needs, with all experts in RAM; as many "
            "as fit lie on it too, or all of them: `strata doctor --model` shows that plan."
        ),
        soft_wrap=True,
    )
    for label, value in _pc_lines(report):
        console.print(Text.assemble((f"{label:11}", "cyan"), printable(value)), soft_wrap=True)
    for notice in (*report.text.problems, *report.stored.notices):
        console.print(Text(f"note: {printable(notice)}"), soft_wrap=True)
    for can_run, sentence in (*_card_verdict(card), (report.verdict.can_run, report.verdict.sentence)):
        console.print(Text(printable(sentence), style="bold green" if can_run else "bold red"), soft_wrap=True)


def _card_verdict(card: CardAnswer) -> list[tuple[bool, str]]:
    """Whether the card can run it, and a sentence; nothing where there is no card to ask."""
    if card.plans is None:
        return []
    where = "its card" if card.plans.split.stages == 1 else "its stages"
    if card.is_used:
        return [(True, f"This PC can run it on {where}: {stages_sentence(card.plans)}.")]
    return [(False, f"This PC cannot run it on {where}: {card.problem}.")]


def _facts(report: ModelReport) -> list[tuple[str, str]]:
    config, count = report.config, report.parameters
    kinds = " + ".join(f"{number} {kind}" for kind, number in report.layers.items())
    streams = f" in {config['hc_count']} residual streams" if config.get("hc_count") else ""
    shared = " + 1 shared" if config.get("shared_expert_intermediate_size") else ""
    experts = config.get("num_experts") or config.get("num_local_experts")
    mlp = ("mlp", f"dense, {config.get('intermediate_size', 0):,} wide")
    if experts:
        width = config["moe_intermediate_size"]
        mlp = ("experts", f"{experts:,} a layer, top {config['num_experts_per_tok']}{shared}, {width:,} wide")
    lines = [
        ("family", f"{report.family}, {config['num_hidden_layers']} layers ({kinds})"),
        ("sizes", f"hidden {config['hidden_size']:,}{streams}, vocabulary {config['vocab_size']:,}"),
        ("context", f"{config['max_position_embeddings']:,} tokens"),
        mlp,
    ]
    if count.by_part[Part.NGRAM]:
        layers = ", ".join(str(layer) for layer in config["ple_layer_ids"])
        lines.append(("n-grams", f"up to {config.get('ngram_size', 3)} tokens, on layer {layers}"))
    if config.get("mtp_num_hidden_layers"):
        use = "" if count.by_part[Part.MTP] else ", not used with this family yet"
        lines.append(("drafts", f"{config['mtp_num_hidden_layers']} MTP layer{use}"))
    lines += [("tokenizer", report.text.tokenizer), ("chat template", report.text.template)]
    formats = ", ".join(f"{gib(size)} {code}" for code, size in report.stored.formats.items())
    where = "in the files" if report.stored.is_present else "expected; there are no weight files here"
    lines.append(("weights", f"{gib(report.stored.total_bytes)} {where} ({formats})"))
    return lines + _stored_lines(report) + _packed_lines(report)


def _stored_lines(report: ModelReport) -> list[tuple[str, str]]:
    """What each part is stored as, where the parts differ."""
    by_part = report.stored.by_part
    if len({tuple(formats) for formats in by_part.values()}) < 2:
        return []
    words = {part: ", ".join(f"{gib(size)} {code}" for code, size in kinds.items()) for part, kinds in by_part.items()}
    return [("", f"{part}: {kinds}") for part, kinds in words.items()]


def _packed_lines(report: ModelReport) -> list[tuple[str, str]]:
    """Bits a weight in the files and in memory, for every format that is packed."""
    packed = packed_formats(report)
    lines = []
    for index, each in enumerate(packed):
        growth = " (grows)" if each.grows else ""
        bits = f"{each.name} {each.published_bits:.2f} bits a weight, {each.packed_bits:.2f} in memory as {each.code}"
        lines.append(("packed" if index == 0 else "", bits + growth))
    return lines


def _parameter_table(report: ModelReport) -> Table:
    table = Table("parameters", title=None, box=None, padding=(0, 2, 0, 0), header_style="cyan")
    table.add_column("total", justify="right")
    table.add_column("a token", justify="right")
    count = report.parameters
    active = {Part.ROUTED: count.active_routed, Part.DENSE: count.active_dense}
    for part, size in parts_in_order(report):
        table.add_row(part.value, _count(size), _count(active[part]) if part in active else "")
    table.add_row("all", _count(count.total), _count(count.active), style="bold")
    return table


def _count(number: int) -> str:
    if number >= 1e9:
        return f"{number / 1e9:.2f} G"
    return f"{number / 1e6:.2f} M" if number >= 1e6 else f"{number:,}"


def _needs_table(report: ModelReport) -> Table:
    """One line a part, one column for each place of both placements."""
    today, later = report.today, report.with_card
    table = Table("needs", box=None, padding=(0, 2, 0, 0), header_style="cyan")
    for heading in ("RAM on the CPU", "RAM beside a card", "its VRAM"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in dict.fromkeys([*today.ram, *today.in_files, *later.ram, *later.vram]):
        in_files = "stays in files" if name in today.in_files else ""
        table.add_row(
            name,
            _cell(today.ram, name) or in_files,
            _cell(later.ram, name),
            _cell(later.vram, name),
        )
    table.add_row("all", gib(today.ram_bytes), gib(later.ram_bytes), gib(later.vram_bytes), style="bold")
    return table


def _cell(sizes: dict[str, int], name: str) -> str:
    return gib(sizes[name]) if name in sizes else ""


def _pc_lines(report: ModelReport) -> list[tuple[str, str]]:
    cpu, memory = report.hardware.cpu, report.hardware.memory
    limit = f", limited to {gib(memory.limit)}" if memory.limit is not None else ""
    sets = ", ".join(cpu.instruction_sets) or "no vector instructions that strata uses"
    cores = f"{cpu.physical_cores} cores, {cpu.logical_cores} threads, {cpu.usable_cores} usable"
    lines = [
        ("processor", f"{cpu.model}: {cores}; {sets}"),
        ("memory", f"{gib(memory.total)}{limit}, {gib(memory.usable)} free; disk {gib(report.disk_free)} free"),
    ]
    for gpu in report.hardware.gpus:
        major, minor = gpu.compute_capability
        fits = ("enough" if fits_card(report.with_card, gpu.free_bytes) else "not enough") + " for the last column"
        lines.append(
            (
                "card",
                f"{gpu.name}: {gib(gpu.total_bytes)}, {gib(gpu.free_bytes)} free ({fits}), compute {major}.{minor}",
            )
        )
    return lines or [("card", "none")]


def fits_card(placement: Placement, free_bytes: int) -> bool:
    """Whether the card has room for what the placement puts there."""
    return placement.vram_bytes <= free_bytes
