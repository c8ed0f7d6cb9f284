"""Random experts for the tests of this folder."""

import numpy as np

from strata.experts.blob import ExpertMatrices
from strata.quant import formats
from strata.quant.packed import PackedMatrix


def random_matrix(name: str, rows: int, columns: int, seed: int, post_scale: float = 1.0) -> PackedMatrix:
    kept = formats.by_name(name)
    values = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    return kept.to_packed(kept.quantize(values), rows, columns, post_scale)


def random_expert(
    inner: str = "Q4_K", outer: str = "Q5_1", width: int = 64, hidden: int = 256, seed: int = 0
) -> ExpertMatrices:
    gate, up = (random_matrix(inner, width, hidden, seed + part) for part in (0, 1))
    return gate, up, random_matrix(outer, hidden, width, seed + 2)
