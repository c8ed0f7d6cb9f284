"""`python -m tests.kernels.sampler_compilation`: compiles the sampler's kernels for a GPU that need not be there.

Launches of their Triton road are replaced by compilations for sm_90 at the published vocabulary. Prints a JSON object:
for each kernel how many PTX instructions round a product and a sum at once, which would change bits.
"""

import json

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.compiler import compile as compile_kernel
from triton.runtime import jit

from strata.kernels.sampler import choices, windows
from strata.kernels.sampler import triton as launches
from strata.kernels.sampler.buffers import ChoiceScratch, ChosenTokens
from strata.kernels.sampler.plan import WindowPlan
from strata.kernels.sampler.results import WindowResults
from strata.kernels.sampler.slots import SlotVariables
from strata.kernels.window_rows import WindowRows

TARGET = GPUTarget("cuda", 90, 32)
VOCABULARY = 248_320
KERNELS = {name for module in (choices, windows) for name in vars(module) if name.endswith("_kernel")}


def compile_launches(fused: dict[str, int]) -> None:
    """From now on a launch adds its kernel to `fused`, compiled."""
    backend = make_backend(TARGET)

    def run(self: jit.JITFunction, *args: object, grid: object, warmup: bool, **options: object) -> None:
        options |= {"debug": False, "instrumentation_mode": ""}
        binder = jit.create_function_from_signature(self.signature, self.params, backend)
        bound, specialization, rest = binder(*args, **options)
        packed = self._pack_args(backend, options, bound, specialization, rest)
        chosen, signature, constants, attributes = packed
        source = ASTSource(self, signature, constants, attributes)
        compiled = compile_kernel(source, target=TARGET, options=chosen.__dict__)
        fused[self.__name__] = fused.get(self.__name__, 0) + compiled.asm["ptx"].count("fma.rn.f32")

    jit.JITFunction.run = run


def main() -> None:
    fused: dict[str, int] = {}
    compile_launches(fused)
    rows, variables, chosen = WindowRows.empty(2, 2, "cpu"), SlotVariables.empty(2, "cpu"), ChosenTokens.empty(2, "cpu")
    plan, results = WindowPlan.empty(2, 3, "cpu"), WindowResults.empty(2, 3, "cpu")
    launches.begin_window(plan, variables, rows)
    launches.choose_tokens(torch.zeros(2, VOCABULARY), rows, variables, ChoiceScratch.empty(2, "cpu"), chosen)
    launches.accept_rows(chosen, rows, plan, variables, torch.zeros(2, dtype=torch.int32), results)
    print(json.dumps({"kernels": sorted(KERNELS), "fused": fused}))


if __name__ == "__main__":
    main()
