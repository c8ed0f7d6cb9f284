"""The layers of the package and who may import whom, as data. Knows no file of the package.

Read from top to bottom: a part imports from parts below its own line, never from its own line or above.
"""

LAYERS: tuple[tuple[str, ...], ...] = (
    ("__init__", "__main__"),
    ("cli",),
    ("server", "bench", "quality"),
    ("api", "engine_process", "stage_rank"),
    ("build",),
    ("build_rank",),
    ("text", "scheduler"),
    ("engine",),
    ("speculation", "sampling"),
    ("models",),
    ("experts", "state"),
    ("weights",),
    ("kernels",),
    ("quant",),
    ("native", "memory"),
    ("types", "settings", "settings_sources", "settings_page", "limits", "hardware", "errors", "models_shipped"),
)
GROUND = len(LAYERS) - 1  # these few may know each other

# Parts that decide with integers, seconds and text: no tensor reaches them, not even through what they import.
WITHOUT_TORCH = (
    "scheduler",
    "server",
    "engine.client",
    "experts.cache",
    "experts.replay",
    "experts.share",
    "experts.routing_profile",
    "types",
    "settings",
    "settings_sources",
    "limits",
    "errors",
    "cli.app",
)

# Of the engine, the scheduler knows the values that both speak in; what runs a step is handed to it.
SCHEDULER_KNOWS = ("engine.control", "engine.messages", "engine.request", "engine.steps")

LAYER_OF = {part: index for index, parts in enumerate(LAYERS) for part in parts}


def may_import(importer: str, imported: str) -> bool:
    """Whether part `importer` may import part `imported` (names of the first level below `strata`)."""
    if importer == imported:
        return True
    above, below = LAYER_OF[importer], LAYER_OF[imported]
    return above < below or above == below == GROUND
