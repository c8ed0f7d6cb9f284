"""What ends one request, what ends everything on a GPU, and what is a mistake of ours."""

import pytest
import torch

from strata.engine.failures import is_out_of_memory, is_requests_failure, naming_lost_device
from strata.errors import DeviceLostError, EngineError, ModelError, RequestError

NO_MEMORY = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
]
LOST = [
    RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously"),
    torch.AcceleratorError("CUDA error: unspecified launch failure"),
    RuntimeError("Triton Error [CUDA]: device-side assert triggered"),
]


@pytest.mark.parametrize("failure", NO_MEMORY)
def test_memory_that_ran_out_ends_one_request(failure: Exception) -> None:
    assert is_out_of_memory(failure)
    assert is_requests_failure(failure)
    with pytest.raises(type(failure)), naming_lost_device():
        raise failure


@pytest.mark.parametrize("failure", LOST)
def test_a_gpu_that_gave_up_is_named_and_no_requests_failure(failure: Exception) -> None:
    assert not is_out_of_memory(failure)
    words = r"the GPU failed .*\((CUDA error|Triton Error).*started again"
    with pytest.raises(DeviceLostError, match=words) as raised, naming_lost_device():
        raise failure
    assert "\n" not in str(raised.value)
    assert not is_requests_failure(raised.value)


@pytest.mark.parametrize(
    ("failure", "is_its_own"),
    [(EngineError("not finite"), True), (RequestError("no"), True), (ModelError("no"), False), (ValueError(), False)],
)
def test_other_failures_are_what_they_are(failure: Exception, is_its_own: bool) -> None:
    assert is_requests_failure(failure) == is_its_own
    with pytest.raises(type(failure)) as raised, naming_lost_device():
        raise failure
    assert raised.value is failure
