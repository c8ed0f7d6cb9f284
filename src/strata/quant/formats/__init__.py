"""Every published format by its GGUF type and by its name. Knows which there are, not what they hold."""

from strata.errors import WeightFileError
from strata.quant.formats.base import Format, RawBytes
from strata.quant.formats.floats import BF16, F16, F32
from strata.quant.formats.fp4 import MXFP4, NVFP4
from strata.quant.formats.iq2 import IQ2_S, IQ2_XS, IQ2_XXS
from strata.quant.formats.iq3 import IQ3_S, IQ3_XXS
from strata.quant.formats.iq4 import IQ4_NL, IQ4_XS
from strata.quant.formats.q2_0 import Q2_0
from strata.quant.formats.q2_k import Q2_K
from strata.quant.formats.q3_k import Q3_K
from strata.quant.formats.q4_0 import Q4_0
from strata.quant.formats.q4_1 import Q4_1
from strata.quant.formats.q4_k import Q4_K, Q5_K
from strata.quant.formats.q5 import Q5_0, Q5_1
from strata.quant.formats.q6_k import Q6_K
from strata.quant.formats.q8_0 import Q8_0

FLOATS = (F32, F16, BF16)
INTEGERS = (Q2_0, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K)
TABLES = (IQ4_NL, IQ4_XS, IQ3_S, IQ3_XXS, IQ2_S, IQ2_XS, IQ2_XXS, MXFP4, NVFP4)
ALL: tuple[Format, ...] = FLOATS + INTEGERS + TABLES

_BY_TYPE = {each.gguf_type: each for each in ALL}
_BY_NAME = {each.name: each for each in ALL}

__all__ = ["ALL", "Format", "RawBytes", "by_gguf_type", "by_name"]


def by_gguf_type(type_id: int) -> Format:
    """The format of a GGUF tensor type. Raises WeightFileError for one that Strata does not read."""
    if type_id not in _BY_TYPE:
        raise WeightFileError(f"tensors of GGUF type {type_id} cannot be read; {', '.join(_BY_NAME)} can")
    return _BY_TYPE[type_id]


def by_name(name: str) -> Format:
    """The format of a name as GGUF writes it (`Q4_0`). Raises WeightFileError for an unknown one."""
    if name not in _BY_NAME:
        raise WeightFileError(f"unknown format {name}; there are {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
