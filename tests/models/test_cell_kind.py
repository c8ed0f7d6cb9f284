"""A config told its kind changes nothing else; a kind that has no room for the model's heads is refused in words."""

import dataclasses

import pytest

from strata.errors import SettingsError
from strata.models.cell_kind import with_cells
from strata.models.families import family_of
from strata.quant.cell_codes import CellKind
from tests.models.test_qwen3_contract import even_config
from tests.models.tiny_qwen4_exp import tiny_config


@pytest.mark.parametrize("kind", CellKind)
def test_every_family_takes_every_kind(kind: CellKind) -> None:
    for values in (tiny_config(head_dim=32), even_config("qwen3_next"), even_config("llama")):
        config = family_of(values).parse_config(values)
        found = with_cells(config, kind)
        assert found.attention.cells is kind
        assert dataclasses.replace(found, attention=config.attention) == config


def test_kinds_with_scales_need_heads_that_can_be_rotated() -> None:
    values = even_config("llama") | {"head_dim": 96}
    config = family_of(values).parse_config(values)
    assert with_cells(config, CellKind.BF16).attention.cells is CellKind.BF16
    for kind in (CellKind.INT8, CellKind.K8V4, CellKind.Q4):
        said = f"setting kv_kind: {kind.value} does not work: this model's heads have 96 values"
        with pytest.raises(SettingsError, match=f"{said}, and it needs 32, 64, 128 or 256; bf16 works"):
            with_cells(config, kind)
