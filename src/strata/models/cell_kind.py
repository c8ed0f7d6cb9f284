"""A family's config told how a slot keeps keys and values: a setting decides it, no file does. Knows no family."""

import dataclasses
from typing import Any

from strata.errors import SettingsError
from strata.quant.cell_codes import HEAD_DIMS, CellKind


def with_cells(config: Any, kind: CellKind) -> Any:
    """A copy of a family's config whose attention keeps its cells as `kind`.

    Raises SettingsError where the kind has no room for heads of the model's size.
    """
    head_dim = config.attention.head_dim
    if (kind.keys.has_scales or kind.values.has_scales) and head_dim not in HEAD_DIMS:
        raise SettingsError(
            f"setting kv_kind: {kind.value} does not work: this model's heads have {head_dim} values, and it needs "
            f"{', '.join(map(str, HEAD_DIMS[:-1]))} or {HEAD_DIMS[-1]}; bf16 works"
        )
    return dataclasses.replace(config, attention=dataclasses.replace(config.attention, cells=kind))
