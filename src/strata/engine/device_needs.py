"""What a model asks of a card, from its config and the headers of its files: the request of a memory plan.

Reads no weight. What is decided from it is in `placement.py`.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from strata.engine.cells_room import check_resident, conversation_room
from strata.engine.checkpoint_budget import checkpoint_growth
from strata.engine.memory_plan import GIB, Budgets, Growth, MemoryPlan, PlanRequest, TableRoom
from strata.engine.parked_budget import parking_growth, with_parking
from strata.engine.placement import MOST_SLOTS_UNASKED, plan_memory
from strata.engine.reader_room import aside_room, fitting_chunk, reader_room, ring_room
from strata.engine.stage import MOST_ROWS
from strata.engine.window_room import window_room
from strata.errors import SettingsError
from strata.experts.expert_files import filing_problem
from strata.experts.sources import expert_layers
from strata.models.device.sizes import CELL_ROWS, StateSizes, cells_of, state_sizes
from strata.models.device.weights import MOST_TABLE_BYTES
from strata.models.families import family_of
from strata.models.fast.packing import held_bytes_packed
from strata.models.needs import Part, StateBytes, part_of, sum_by_part
from strata.quant.cell_codes import CellKind
from strata.settings import EngineSettings
from strata.weights.opening import ModelSource
from strata.weights.table_files import table_problem


def plan_for(source: ModelSource, settings: EngineSettings, budgets: Budgets) -> MemoryPlan:
    """The plan of a model under these settings; its `refusal` says whether it fits. Draft layers count if used.

    Checkpoints that nobody asked for are given up before anything else is, and the room for chunks that are set aside:
    where it does not fit with them, or fits only because tables or experts stay in files, or experts that the card has
    are missing in main memory. Parked conversations that nobody asked for get a part of what is left of main memory
    where nothing was given up.
    """
    plan = _plan_for(source, settings, budgets)
    if not any(_given_up(plan, settings)):
        return plan if settings.parked_gib is not None else with_parking(plan, _state_of(source, settings))
    without = _plan_for(source, without_spares(settings), budgets, sets_aside=False)
    is_better = _given_up(without, settings) < _given_up(plan, settings)
    return without if is_better or without.refusal is not None else plan


def _given_up(plan: MemoryPlan, settings: EngineSettings) -> tuple[bool, bool, bool, bool]:
    """What there is no room for, the worst first; not what the settings ask for by themselves."""
    request = plan.request
    return (
        plan.refusal is not None,
        request.is_filed,
        request.is_exclusive and not settings.resident,
        request.reads_tables and TableRoom(settings.ngram_table) is TableRoom.AUTO,
    )


def without_spares(settings: EngineSettings) -> EngineSettings:
    """The same with no more checkpoints than slots must have, unless somebody said how many."""
    return settings if settings.checkpoint_gib is not None else dataclasses.replace(settings, checkpoint_gib=0)


def _plan_for(
    source: ModelSource, settings: EngineSettings, budgets: Budgets, *, sets_aside: bool = True
) -> MemoryPlan:
    family = family_of(source.config)
    config = family.parse_config(source.config)
    wanted = wanted_shapes(family.expected_tensors(config), settings)
    sizes = held_bytes_packed(source, wanted)
    request = plan_request(source.config, config, sizes, wanted, settings, budgets, sets_aside=sets_aside)
    return plan_memory(with_file_problems(request, source, wanted))


def wanted_shapes(shapes: Mapping[str, tuple[int, ...]], settings: EngineSettings) -> dict[str, tuple[int, ...]]:
    """Of the tensors that are read: draft layers' only if they are used."""
    return {name: shape for name, shape in shapes.items() if settings.drafts or part_of(name) is not Part.MTP}


def with_file_problems(request: PlanRequest, source: ModelSource, wanted: Mapping[str, tuple[int, ...]]) -> PlanRequest:
    """The same with whether experts and tables can stay in the model's files."""
    tables = [name for name in wanted if part_of(name) is Part.NGRAM and name in source.names()]
    filing = filing_problem(source, expert_layers(wanted))
    return dataclasses.replace(request, filing_problem=filing, table_problem=table_problem(source, tables))


def plan_request(
    values: Mapping[str, Any],
    config: Any,
    tensor_bytes: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    settings: EngineSettings,
    budgets: Budgets,
    usual_groups: int = 1,
    *,
    sets_aside: bool = True,
) -> PlanRequest:
    """values: config.json; config: the family's; tensor_bytes: canonical name -> bytes as the card holds them.

    usual_groups: of slots, where nobody said how many. sets_aside: there is room for a chunk of a prompt that waits for
    another one; without it that is taken when it is wanted. Raises SettingsError for a `kv_resident` that the model
    cannot do with.
    """
    routed = {name: shape for name, shape in shapes.items() if part_of(name) is Part.ROUTED}
    blobs = blobs_of(tensor_bytes, routed)
    kind = CellKind(settings.kv_kind)
    sizes = state_sizes(config)
    state = state_of(sizes, kind)
    check_resident(config, sizes, settings)
    ring = ring_room(blobs, max((shape[0] for shape in routed.values()), default=0))
    chunk_rows, of_chunks = _chunks_of(values, config, settings, budgets, ring)
    if not sets_aside:
        of_chunks = of_chunks[:1]
    groups = _groups(settings, usual_groups)
    return PlanRequest(
        budgets=budgets,
        weights=sum_by_part(tensor_bytes),
        routed_weights=sum(map(math.prod, routed.values())),
        growing=(
            *conversation_room(state, sizes, settings, settings.context or config.max_position),
            checkpoint_growth(state.fixed, settings.checkpoint_gib, budgets.ram.usable, settings.slots),
            *parking_growth(settings.parked_gib, budgets.ram.usable),
            _windows_of(groups, window_room(values, config.max_position)),
            *of_chunks,
        ),
        longest_context=config.max_position,
        most_table_bytes=MOST_TABLE_BYTES,
        asked_slots=settings.slots,
        asked_context=settings.context,
        blobs=blobs,
        ranks=ranks_of(values),
        asked_cache=None if settings.cache_gib is None else int(settings.cache_gib * GIB),
        is_exclusive=settings.resident,
        is_filed=settings.mmap,
        tables=TableRoom(settings.ngram_table),
        most_asked=most_asked(values, routed),
        chunk_rows=chunk_rows,
        ring_bytes=ring if chunk_rows else 0,
        kv_kind=kind,
        kv_resident=settings.kv_resident,
        groups=groups,
    )


def _chunks_of(
    values: Mapping[str, Any], config: Any, settings: EngineSettings, budgets: Budgets, ring: int
) -> tuple[int, tuple[Growth, ...]]:
    """Rows of a chunk, and what chunks take: on the card, and set aside while another prompt is read."""
    if settings.gpu_reads != "chunks":
        return 0, ()
    kind, is_paged = CellKind(settings.kv_kind), settings.kv_resident > 0
    cells = min(config.max_position, settings.context or config.max_position)
    fitting = fitting_chunk(values, budgets.card.usable, settings.chunk_rows, cells, kind, ring, is_paged=is_paged)
    rows = min(fitting, cells_of(cells))
    on_card = reader_room(values, rows, config.max_position, kind, is_paged=is_paged)
    return rows, (on_card,) if settings.slots == 1 else (on_card, aside_room(values, rows))


def _groups(settings: EngineSettings, usual: int) -> int:
    """Of slots, at most. Raises SettingsError for more of them than can be."""
    groups = settings.groups_of(settings.slots or MOST_SLOTS_UNASKED, 1 if settings.kv_resident else usual)
    if groups > 1 and settings.kv_resident:
        raise SettingsError(
            f"setting groups: {groups} does not work with kv_resident {settings.kv_resident:,}, whose blocks on the "
            "card every window moves; 1 does, or kv_resident 0"
        )
    return groups


def _windows_of(groups: int, room: Growth) -> Growth:
    """Every group of slots has buffers of its own."""
    return dataclasses.replace(room, fixed=groups * room.fixed, per_position=groups * room.per_position)


def ranks_of(values: Mapping[str, Any]) -> int:
    """Routed experts of a row; 0: there are none. values: config.json."""
    return (values.get("text_config") or values).get("num_experts_per_tok") or 0


def most_asked(values: Mapping[str, Any], routed: Mapping[str, tuple[int, ...]]) -> int:
    """How many experts a window asks of one layer at most; `routed` are the experts' tensors."""
    return min(max((shape[0] for shape in routed.values()), default=0), MOST_ROWS * ranks_of(values))


def blobs_of(tensor_bytes: Mapping[str, int], routed: Mapping[str, tuple[int, ...]]) -> tuple[tuple[int, int], ...]:
    """(bytes of an expert, how many) of every size; `routed` are the experts' tensors."""
    counts: dict[int, int] = {}
    for layer in expert_layers(routed):
        experts = routed[f"{layer}experts.down_proj"][0]
        size = math.ceil(sum(tensor_bytes[name] for name in routed if name.startswith(layer)) / experts)
        counts[size] = counts.get(size, 0) + experts
    return tuple(counts.items())


def _state_of(source: ModelSource, settings: EngineSettings) -> StateBytes:
    config = family_of(source.config).parse_config(source.config)
    return state_of(state_sizes(config), CellKind(settings.kv_kind))


def state_of(sizes: StateSizes, kind: CellKind) -> StateBytes:
    """A slot's state as what never grows and what a token adds."""
    fixed, run = (sizes.state_bytes(1, context, kind) for context in (0, CELL_ROWS))
    return StateBytes(fixed, (run - fixed) / CELL_ROWS)
