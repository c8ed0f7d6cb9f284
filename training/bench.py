"""Times a training step of every stage and checks the GPU kernels against their torch twins.

Knows the trainer; knows nothing of quality. Run on a GPU: python -m training.bench
"""

import time
from pathlib import Path

import torch

from training.delta_rule import gated_delta_rule, scan, scan_backward, unit_lower_inverse
from training.recipe import STAGES
from training.train import Plan, Trainer


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.cpu().double() - expected.double()).norm() / expected.double().norm())


def check_kernels() -> None:
    torch.manual_seed(0)
    lower = torch.randn(64, 64, 64).tril(-1) * 0.1
    print("inverse", relative(unit_lower_inverse(lower.cuda()), unit_lower_inverse(lower)))
    new, read, key, d_values, d_states = (torch.randn(16, 4, 64, 64) * 0.1 for _ in range(5))
    decay, offsets = torch.rand(16, 4), torch.tensor([0, 4, 4, 16], dtype=torch.int32)
    fast = scan(*(x.cuda() for x in (new, read, key, decay, offsets)))
    for name, a, b in zip(("states", "values"), fast, scan(new, read, key, decay, offsets), strict=True):
        print("scan", name, relative(a, b))
    inputs = (d_values, d_states, read, key, decay, offsets)
    for name, a, b in zip(
        ("carried", "d_new"), scan_backward(*(x.cuda() for x in inputs)), scan_backward(*inputs), strict=True
    ):
        print("scan backward", name, relative(a, b))
    query, key, value = (torch.nn.functional.normalize(torch.randn(256, 4, 64), dim=-1) for _ in range(3))
    log_decay, beta = -torch.rand(256, 4) * 0.2, torch.rand(256, 4)
    inputs = (query, key, value, log_decay, beta, torch.tensor([0, 4], dtype=torch.int32))
    print("delta rule", relative(gated_delta_rule(*(x.cuda() for x in inputs)), gated_delta_rule(*inputs)))


def main() -> None:
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.recompile_limit = 64
    check_kernels()
    plan = Plan(tokens=10**9, rows=65_536, manual_share=0.32, further_share=0.28, drop=0.1, deadline=1e9)
    trainer = Trainer(Path("build/corpus"), plan, torch.device("cuda"), seed=1)
    trainer.model.compile()
    for stage in STAGES:
        started = time.monotonic()
        for _ in range(4):
            trainer.step(stage)
        torch.cuda.synchronize()
        ready = time.monotonic()
        for _ in range(16):
            trainer.step(stage)
        torch.cuda.synchronize()
        rate = 16 * plan.rows / (time.monotonic() - ready)
        peak = torch.cuda.max_memory_allocated() / 2**30
        print(
            f"{stage.name}: first 4 steps {ready - started:.1f} s, then {rate:,.0f} tokens/s, peak {peak:.1f} GiB",
            flush=True,
        )


if __name__ == "__main__":
    main()
