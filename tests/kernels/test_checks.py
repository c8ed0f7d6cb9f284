"""What is refused before a kernel misreads it, and with which words."""

import pytest
import torch

from strata.kernels.checks import check_rows_out, check_tensor, plain_rows
from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows.rows_out import Activations, RowsOut

CPU = torch.device("cpu")


def test_a_tensor_of_another_shape_type_or_order_is_named() -> None:
    check_tensor("x", None, (2, 3))
    check_tensor("x", torch.zeros(2, 3), (2, 3))
    with pytest.raises(ValueError, match=r"x must be contiguous torch\.float32 \[2, 3\], not torch\.float32 \[3, 2\]$"):
        check_tensor("x", torch.zeros(3, 2), (2, 3))
    with pytest.raises(ValueError, match=r"not torch\.int32 \[2, 3\]$"):
        check_tensor("x", torch.zeros(2, 3, dtype=torch.int32), (2, 3))
    with pytest.raises(ValueError, match=r"\[2, 3\], not contiguous$"):
        check_tensor("x", torch.zeros(3, 2).T, (2, 3))


def test_rows_go_where_there_is_room_for_them() -> None:
    quantized = Activations.empty(2, 3, CPU, LaunchShape())
    check_rows_out("out", RowsOut(torch.zeros(2, 96), quantized), 2, 96)
    check_rows_out("out", RowsOut(None, quantized), 2, 96)
    check_rows_out("out", RowsOut(torch.zeros(2, 90), None), 2, 90)
    with pytest.raises(ValueError, match="out has neither plain nor quantized rows"):
        check_rows_out("out", RowsOut(None, None), 2, 96)
    with pytest.raises(ValueError, match=r"out\.plain must be .* \[3, 96\]"):
        check_rows_out("out", RowsOut(torch.zeros(2, 96), None), 3, 96)
    with pytest.raises(ValueError, match=r"out\.quantized: 90 columns are no whole blocks of 32"):
        check_rows_out("out", RowsOut(None, quantized), 2, 90)
    with pytest.raises(ValueError, match=r"out\.quantized\.values must be .* \[8, 4\]"):
        check_rows_out("out", RowsOut(None, quantized), 2, 128)
    with pytest.raises(ValueError, match=r"out\.quantized\.values must be .* torch\.float32 \[2, 96\]"):
        check_rows_out("out", RowsOut(None, Activations(torch.zeros(2, 96), torch.zeros(2, 96))), 2, 96)


def test_the_torch_road_writes_plain_rows_alone() -> None:
    plain, quantized = torch.zeros(2, 32), Activations.empty(2, 1, CPU, LaunchShape())
    assert plain_rows("out", RowsOut(plain, None)) is plain
    for out in (RowsOut(plain, quantized), RowsOut(None, quantized)):
        with pytest.raises(ValueError, match=r"out: the torch road .* give RowsOut\(plain, None\)"):
            plain_rows("out", out)
