"""What config.json says about how the weights are stored: nothing, or block FP8; other methods are refused by name.

Knows `quantization_config` only.
"""

from collections.abc import Mapping
from typing import Any

from strata.errors import ConfigError

_FIELD = "quantization_config"


def read_weight_block(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """(rows, columns) of an FP8 block, or None for a model whose weights are stored plainly.

    Raises ConfigError for a quantization method, number format or granularity that is not read.
    """
    text = config.get("text_config")
    settings = config.get(_FIELD)
    if settings is None and isinstance(text, Mapping):
        settings = text.get(_FIELD)
    if settings is None:
        return None
    if not isinstance(settings, Mapping):
        raise ConfigError(f"config.json: {_FIELD} must be a JSON object")
    method = settings.get("quant_method")
    if method != "fp8":
        raise ConfigError(
            f"config.json: {_FIELD}.quant_method = {str(method)[:60]!r} is not supported; supported: 'fp8' with "
            "weight_block_size, or weights that are not quantized"
        )
    number_format = settings.get("fmt", "e4m3")
    if number_format not in ("e4m3", "e4m3fn", "float8_e4m3fn"):
        raise ConfigError(
            f"config.json: {_FIELD}.fmt = {str(number_format)[:60]!r} is not supported; supported: 'e4m3'"
        )
    return _read_block_size(settings.get("weight_block_size"))


def _read_block_size(size: Any) -> tuple[int, int]:
    is_pair = isinstance(size, list | tuple) and len(size) == 2
    if not is_pair or any(not isinstance(item, int) or isinstance(item, bool) or item < 1 for item in size):
        raise ConfigError(
            f"config.json: {_FIELD}.weight_block_size = {str(size)[:60]} is not supported; a pair of whole numbers "
            ">= 1 works, as in [128, 128]"
        )
    return (size[0], size[1])
