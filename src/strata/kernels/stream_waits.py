"""Having a CUDA stream wait for a word in pinned memory, without a kernel: one call of the driver, also in a capture.

Knows no protocol: who writes the word, and that somebody does, is the caller's to know.
"""

import ctypes
import functools

import torch

from strata.errors import EngineError

DRIVER = "libcuda.so.1"
NEEDED = "cuStreamWaitValue32_v2"
GREATER_OR_EQUAL = 0  # CU_STREAM_WAIT_VALUE_GEQ: of signed differences
INSTEAD = 'with expert_wait = "spin" a kernel waits instead'


def wait_for_word(word: torch.Tensor, least: int, device: torch.device) -> None:
    """What is launched on the device's current stream from now on waits until word int32 [1] is at least `least`.

    word: in pinned memory, or on the device. Nothing but the word's value ends the wait. Raises EngineError where the
    driver cannot do it.
    """
    driver, stream = _driver(), torch.cuda.current_stream(device).cuda_stream
    code = driver.cuStreamWaitValue32_v2(stream, word.data_ptr(), least, GREATER_OR_EQUAL)
    if code:
        name = ctypes.c_char_p()
        driver.cuGetErrorName(code, ctypes.byref(name))
        words = (name.value or b"an error without a name").decode(errors="replace")
        raise EngineError(f"the CUDA driver cannot have a stream wait for memory ({words}, {code}): {INSTEAD}")


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        driver = ctypes.CDLL(DRIVER)
        wait = getattr(driver, NEEDED)
    except (OSError, AttributeError) as reason:
        raise EngineError(f"{NEEDED} of a CUDA driver from 11.7 on is missing: {reason}; {INSTEAD}") from reason
    wait.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint)
    wait.restype = driver.cuGetErrorName.restype = ctypes.c_int
    driver.cuGetErrorName.argtypes = (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))
    return driver
