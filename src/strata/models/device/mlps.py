"""The launches of a layer's MLP: routed experts with a shared one, or one dense MLP. Knows no arithmetic."""

from dataclasses import replace

from strata.experts.tiers import LayerTiers
from strata.kernels.expert_plan import collect_rows, is_one_launch, plan_experts, route_and_plan, wait_at_gate
from strata.kernels.expert_plan.tables import RowScores
from strata.kernels.expert_rows import expert_rows_into
from strata.kernels.expert_rows.buffers import SharedExpert
from strata.kernels.gated_mlp import silu_times_into
from strata.kernels.residual_streams import ExpertRows, MixerRows
from strata.kernels.router import Routes, SharedGate, route_rows
from strata.models.device.description import DenseMlp, SparseMlp
from strata.models.device.held import DeviceMatrices
from strata.models.device.walk import LayerInput, Readers, Walk


def readers_of(mlp: SparseMlp | DenseMlp) -> Readers:
    """Who reads an MLP's input."""
    if isinstance(mlp, DenseMlp):
        return Readers.of(mlp.gate_up)
    layouts = [part.layout for part in _router_and_shared(mlp).parts]
    has_gate = mlp.shared is not None and mlp.shared.gate is not None
    read_plain = has_gate or mlp.asks_with_plain_rows
    return Readers([*layouts, mlp.blobs.layout.gate, mlp.blobs.layout.up], read_plain)


def append_mlp(walk: Walk, mlp: SparseMlp | DenseMlp, x: LayerInput) -> None:
    """An MLP of either kind."""
    if isinstance(mlp, DenseMlp):
        _append_dense(walk, mlp, x)
    else:
        _append_sparse(walk, mlp, x)


def _append_dense(walk: Walk, mlp: DenseMlp, x: LayerInput) -> None:
    buffers, layouts = walk.buffers, [part.layout for part in mlp.down.parts]
    gate_up = buffers.take("dense gate and up", mlp.gate_up.shape[0])
    walk.multiply("mlp: gate, up", mlp.gate_up, x.rows, gate_up)
    hidden = buffers.room("dense hidden", layouts)
    walk.launch("mlp: hidden", silu_times_into, gate_up, layouts, hidden)
    output = buffers.take("mlp output", buffers.model.hidden)
    walk.multiply("mlp: down", mlp.down, hidden, output)
    walk.addition = MixerRows(output, x.strengths)


def _append_sparse(walk: Walk, mlp: SparseMlp, x: LayerInput) -> None:
    buffers, experts = walk.buffers, mlp.router.shape[0]
    first = _router_and_shared(mlp)
    products = buffers.take("router and shared", first.shape[0])
    walk.multiply("experts: router, shared gate, up", first, x.rows, products)
    routes = buffers.routes(mlp)
    gate = shared = None
    if mlp.shared is not None:
        shared = SharedExpert(products[:, experts:], mlp.shared.down)
        if mlp.shared.gate is not None:
            assert x.rows.plain is not None
            gate = SharedGate(x.rows.plain, mlp.shared.gate)
    made, scores = buffers.experts(mlp), RowScores(products[:, :experts], buffers.rows, mlp.normalize, gate)
    if mlp.tiers is None:
        _append_routing(walk, scores, routes)
        walk.launch("experts: rows", expert_rows_into, mlp.blobs, routes.work, x.rows, made, shared)
    else:
        _append_planned(walk, mlp, mlp.tiers, scores, routes, x, shared)
    shared_rows = made.shared_rows if shared is not None else None
    walk.addition = ExpertRows(made.by_rank, routes.weights, shared_rows, routes.shared_weights, x.strengths)


def _append_routing(walk: Walk, scores: RowScores, routes: Routes) -> None:
    walk.launch("experts: route", route_rows, scores.logits, scores.rows, scores.normalize, routes, scores.shared)


def _append_planned(
    walk: Walk,
    mlp: SparseMlp,
    tiers: LayerTiers,
    scores: RowScores,
    routes: Routes,
    x: LayerInput,
    shared: SharedExpert | None,
) -> None:
    """Routed experts that are not all on the device."""
    buffers, mailbox, state = walk.buffers, tiers.mailbox, tiers.state
    planned, made = buffers.planned(mlp), buffers.experts(mlp)
    asked = (x.rows, tiers.tables, mailbox, tiers.layer, state, planned)
    if is_one_launch(buffers.rows.count, mailbox):
        walk.launch("experts: route, plan", route_and_plan, scores, routes, *asked)
    else:
        _append_routing(walk, scores, routes)
        walk.launch("experts: plan", plan_experts, routes.work, *asked)
    blobs = replace(mlp.blobs, addresses=planned.addresses)
    walk.launch("experts: rows", expert_rows_into, blobs, planned.work, x.rows, made, shared)
    if mailbox.gate is not None:
        walk.launch("experts: wait", wait_at_gate, mailbox, state)
    walk.launch("experts: collect", collect_rows, mailbox, state, planned, made.by_rank)


def _router_and_shared(mlp: SparseMlp) -> DeviceMatrices:
    """What is multiplied with the input beside the routed experts."""
    shared = () if mlp.shared is None else mlp.shared.gate_up.parts
    return DeviceMatrices((*mlp.router.parts, *shared))
