"""Strata: run a Mixture-of-Experts language model that is larger than the graphics card.

The public surface; each name is imported when it is first used, so that `strata --help` loads no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strata.api import Engine, Generation
    from strata.errors import (
        ConfigError,
        EngineError,
        ModelError,
        RequestError,
        SettingsError,
        StrataError,
        TemplateError,
        TextError,
        WeightFileError,
    )
    from strata.sampling.options import SamplingOptions
    from strata.types import Finished, FinishReason, Message, TextPiece, Usage

__version__ = "0.1.0"

_HOMES = {
    "strata.api": ("Engine", "Generation"),
    "strata.sampling.options": ("SamplingOptions",),
    "strata.types": ("Finished", "FinishReason", "Message", "TextPiece", "Usage"),
    "strata.errors": (
        "ConfigError",
        "EngineError",
        "ModelError",
        "RequestError",
        "SettingsError",
        "StrataError",
        "TemplateError",
        "TextError",
        "WeightFileError",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ConfigError",
    "Engine",
    "EngineError",
    "FinishReason",
    "Finished",
    "Generation",
    "Message",
    "ModelError",
    "RequestError",
    "SamplingOptions",
    "SettingsError",
    "StrataError",
    "TemplateError",
    "TextError",
    "TextPiece",
    "Usage",
    "WeightFileError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'strata' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
