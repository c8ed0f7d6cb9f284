"""How many bytes of a tile's weights are asked for ahead: all of its codes and scales, where GPUs can ask."""

import pytest

from strata.kernels.launch_shapes import LaunchShape
from strata.quant.layout import Array
from tests.kernels.random_matrices import KINDS, Kind

pytest.importorskip("triton")
from strata.kernels import dependent
from strata.kernels.packed_rows.prefetch import prefetch_constants

ASKS, SILENT = LaunchShape(prefetches=True), LaunchShape()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_tiles_share_is_its_codes_and_scales(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependent, "HAS_DEPENDENT_LAUNCHES", True)
    layout = kind.layout(40, 256)
    found = prefetch_constants(layout, ASKS)
    for name, array in (("CODE_BYTES", Array.CODES), ("SCALE_BYTES", Array.SCALES)):
        assert found[name] * layout.columns // 32 * layout.tiles == layout.array_bytes(array)


def test_nothing_is_asked_for_where_no_kernel_starts_early_or_the_launch_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing = {"CODE_BYTES": 0, "SCALE_BYTES": 0}
    layout = KINDS[0].layout(16, 256)
    monkeypatch.setattr(dependent, "HAS_DEPENDENT_LAUNCHES", True)
    assert prefetch_constants(layout, SILENT) == nothing
    monkeypatch.setattr(dependent, "HAS_DEPENDENT_LAUNCHES", False)
    assert prefetch_constants(layout, ASKS) == nothing
