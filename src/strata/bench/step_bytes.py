"""What one step of a window must read and write on a card, by its name. Pure arithmetic; all steps together give
`window_bytes`.
"""

from strata.bench.window_bytes import cell_bytes, pooled_bytes, routed_bytes
from strata.models.device.description import (
    AttentionMixer,
    DeltaMixer,
    DeviceLayer,
    DeviceModel,
    ResidualRead,
    SparseMlp,
)
from strata.models.device.launches import Launch
from strata.models.device.sizes import FLOAT_BYTES
from strata.quant.cell_codes import CellKind


def step_bytes(model: DeviceModel, launch: Launch, slots: int, context: int, kind: CellKind) -> int:
    """Bytes of weights, state and cells; what rows hand to one another is not counted, so a step may have none."""
    if launch.layer is None:
        return _outside(model, launch.step, slots)
    layer = model.layers[launch.layer]
    part, _, step = launch.step.partition(": ")
    if part in ("mixer", "mlp") and step.startswith("gates"):
        return _gates(layer.mixer_read if part == "mixer" else layer.mlp_read, step)
    if part == "n-grams":
        return _ngram(model, layer, step, slots)
    if part in ("experts", "mlp"):
        return _mlp(layer, step, slots)
    if isinstance(layer.mixer, DeltaMixer):
        return _delta(model, layer.mixer, step, slots)
    return _attention(layer.mixer, step, slots, context, kind)


def _outside(model: DeviceModel, step: str, slots: int) -> int:
    if step.startswith("head: gates"):
        assert model.final_read is not None, "only the last part of a model has a head"
        return _gates(model.final_read, step.partition(": ")[2])
    if step == "head":
        assert model.head is not None, "only the last part of a model has one"
        return model.head.total_bytes
    if step == "commit: delta":  # of rows that are certain to stand the rule wrote the rest
        return slots * model.sizes.delta_layers * _conv_tail(model)
    return slots * model.sizes.ngram_bytes if step == "commit: n-grams" else 0


def _gates(read: ResidualRead, step: str) -> int:
    assert read.gates is not None
    return read.gates.down.total_bytes if step == "gates down" else read.gates.up.layout.total_bytes


def _ngram(model: DeviceModel, layer: DeviceLayer, step: str, slots: int) -> int:
    assert layer.ngram is not None
    matrices = {"key": layer.ngram.key, "value": layer.ngram.value}
    if step in matrices:
        return matrices[step].total_bytes
    return slots * model.sizes.ngram_bytes // model.sizes.ngram_layers if step == "finish" else 0


def _mlp(layer: DeviceLayer, step: str, slots: int) -> int:
    mlp = layer.mlp
    if not isinstance(mlp, SparseMlp):
        return {"gate, up": mlp.gate_up.total_bytes, "down": mlp.down.total_bytes}.get(step, 0)
    shared = mlp.shared
    if step == "router, shared gate, up":
        return mlp.router.total_bytes + (0 if shared is None else shared.gate_up.total_bytes)
    if step == "rows":
        return round(routed_bytes(mlp, slots)) + (0 if shared is None else shared.down.layout.total_bytes)
    return 0


def _delta(model: DeviceModel, mixer: DeltaMixer, step: str, slots: int) -> int:
    matrices = {"in": mixer.in_all, "out": mixer.out}
    if step in matrices:
        return matrices[step].total_bytes
    if step != "rule":
        return 0
    state = model.sizes.recurrent_bytes // model.sizes.delta_layers
    return slots * (2 * state - _conv_tail(model))  # the tail is read here, and written by the commit


def _conv_tail(model: DeviceModel) -> int:
    return FLOAT_BYTES * model.sizes.conv_rows * model.sizes.conv_width


def _attention(mixer: AttentionMixer, step: str, slots: int, context: int, kind: CellKind) -> int:
    matrices = {"in": mixer.projections, "out": mixer.out}
    if step in matrices:
        return matrices[step].total_bytes
    if step == "choose":
        return slots * pooled_bytes(mixer, context)
    return slots * cell_bytes(mixer, context, kind) if step == "attend" else 0
