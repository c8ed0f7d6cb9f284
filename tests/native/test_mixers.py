"""The handle of a model in the library: a model without layers is a norm and a head, and its clocks count."""

import ctypes

import pytest
import torch

from strata.errors import EngineError
from strata.kernels.packed_rows.native import native_matrix
from strata.native import library, mixers
from strata.native.matrices import NativeMatrix
from strata.native.pool import Pool
from strata.quant.layout import Code, MatrixLayout
from strata.quant.packed import pack
from strata.quant.rows import RowMajor

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")

HIDDEN, VOCABULARY = 24, 40


def run(model: mixers.Model, token_ids: torch.Tensor, first_logit_row: int) -> tuple[torch.Tensor, int]:
    rows = len(token_ids)
    hidden, logits = torch.empty(rows, HIDDEN), torch.full((rows - first_logit_row, VOCABULARY), float("nan"))
    bounds, positions = (ctypes.c_int32 * 2)(0, rows), (ctypes.c_int64 * 1)(0)
    is_finite = ctypes.c_int32(7)
    window = mixers.Window(
        rows=rows,
        slots=1,
        bounds=ctypes.addressof(bounds),
        positions=ctypes.addressof(positions),
        token_ids=token_ids.data_ptr(),
        first_logit_row=first_logit_row,
        hidden=hidden.data_ptr(),
        logits=logits.data_ptr(),
        is_finite=ctypes.addressof(is_finite),
    )
    model.window(window)
    return logits, is_finite.value


def packed(values: torch.Tensor) -> NativeMatrix:
    return native_matrix(pack(MatrixLayout(*values.shape, Code.F32), RowMajor(values.numpy())))


def group_of(matrix: NativeMatrix) -> mixers.Matrices:
    group = mixers.Matrices(1, matrix.rows)
    group.parts[0] = ctypes.addressof(matrix.struct)
    return group


def test_a_model_without_layers_is_a_norm_and_a_head() -> None:
    embedding, scale = torch.randn(VOCABULARY, HIDDEN), torch.rand(HIDDEN)
    head_values = torch.randn(VOCABULARY, HIDDEN)
    head, table = packed(head_values), packed(embedding)
    shape = mixers.ModelShape(
        hidden=HIDDEN,
        streams=1,
        vocabulary=VOCABULARY,
        eps=1e-6,
        embedding=group_of(table),
        final_norm=scale.data_ptr(),
        head=group_of(head),
    )
    with Pool(2, keeps_cores=False) as pool:
        model = mixers.Model(shape, pool.handle)
        tokens = torch.tensor([3, 39, 0])
        expected = torch.nn.functional.rms_norm(embedding[tokens], (HIDDEN,), scale, 1e-6) @ head_values.t()
        for first in (0, 2):
            logits, is_finite = run(model, tokens, first)
            assert is_finite == 1
            assert (logits - expected[first:]).abs().max() <= 1e-5
        table._arrays[0].view(torch.float32)[39 // 16 * 16 * HIDDEN + 5 * 16 + 39 % 16] = float("inf")
        assert run(model, tokens, 0)[1] == 0
        assert run(model, tokens, 3)[1] == 0  # without logits the rows themselves are looked at
        assert model.window_floats(5) == 0
        times = model.times()
        assert (times.windows, times.rows) == (4, 12)
        assert 0 < times.head < 10**10
        head.struct.columns = 0  # refused by the library, with a sentence
        with pytest.raises(EngineError, match="refused"):
            run(model, tokens, 0)
        del model
