"""Which models pass a device in chunks; the others' prompts are read as windows. Knows what kernels of reads take."""

from strata.kernels.delta_read.arguments import LEAST_DIM
from strata.models.device.description import DeviceModel, SparseMlp


def chunk_problem(model: DeviceModel) -> str | None:
    """Why prompts of this model cannot be read in chunks, in words that follow "because"; None if they can."""
    shape = model.delta_shape
    if shape is not None and min(shape.key_dim, shape.value_dim) < LEAST_DIM:
        return f"heads of its delta nets have fewer than {LEAST_DIM} values"
    for layer in model.layers:
        if isinstance(layer.mlp, SparseMlp) and layer.mlp.blobs.layout.gate != layer.mlp.blobs.layout.up:
            return "gate and up of its experts are in different codes"
    return None
