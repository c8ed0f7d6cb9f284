"""`python -m tests.gpu.warm_start FOLDER`: a process that starts with a folder of compiled kernels; compiles it any?

Prints how many kernels it fetched and which it compiled; exit code 1 if there was one.
"""

import sys
from pathlib import Path

import torch

from strata.engine.graphs import WindowGraphs
from strata.engine.stage import Stage, StageSizes
from strata.kernels.compiled import noting_compilations, use_cache
from tests.gpu.tiny_models import tiny_model

PRECOMPILED = ("qwen4_exp", "code8")
SLOTS = 2


def main() -> int:
    use_cache(Path(sys.argv[1]))
    model = tiny_model(*PRECOMPILED).build(torch.device("cuda"))[1]
    with noting_compilations() as noted:
        WindowGraphs(Stage(model, StageSizes(SLOTS, 4096)))
    print(f"{len(noted.fetched)} kernels fetched, compiled: {sorted(set(noted.compiled)) or 'none'}")
    return bool(noted.compiled)


if __name__ == "__main__":
    sys.exit(main())
