"""The kernels that measure a card's memories read and write what they say: in Triton's interpreter, on this CPU."""

import pytest
import torch

from tests.kernels.interpreter import needs_interpreter


@needs_interpreter
@pytest.mark.parametrize("count", [4096, 5000])
def test_the_copying_kernel_copies_every_word_and_no_more(count: int) -> None:
    from strata.bench.device_timing import fetch_kernel

    source = torch.randint(-(2**31), 2**31 - 1, (count,), dtype=torch.int32)
    target = torch.full((count + 8,), 7, dtype=torch.int32)
    fetch_kernel[(-(-count // 1024),)](source, target, count, BLOCK=1024)
    assert torch.equal(target[:count], source)
    assert (target[count:] == 7).all()


@needs_interpreter
def test_the_reading_kernel_reads_every_word() -> None:
    from strata.bench.device_timing import read_kernel

    source = torch.randint(-1000, 1000, (4096,), dtype=torch.int32)
    target = torch.zeros(4, dtype=torch.int32)
    read_kernel[(4,)](source, target, BLOCK=1024)
    assert torch.equal(target, source.view(4, 1024).sum(1).int())
