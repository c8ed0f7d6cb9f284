"""`strata bench`: measurements, each prints one table and writes JSON if asked to.

Knows flags and tables; what is measured and how is in `strata.bench`.
"""

from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strata.bench.peer import CpuExperts, PeerPlan, PeerReport, Speed, compare_with_peer
from strata.cli.bench_decode import decode
from strata.cli.bench_interleave import interleave
from strata.cli.bench_join import join
from strata.cli.bench_kernels import kernels
from strata.cli.bench_read import read
from strata.cli.bench_serve import serve
from strata.cli.console import printable
from strata.cli.flags import GivenPath
from strata.cli.report_file import check_report_file, write_report
from strata.errors import SettingsError
from strata.hardware import read_cpu

app = App(name="bench", help="Measure.")
app.command(decode)
app.command(interleave)
app.command(join)
app.command(kernels)
app.command(read)
app.command(serve)


@app.command
def peer(
    model: GivenPath,
    /,
    *,
    cpu: Annotated[bool, Parameter(negative="")] = False,
    gpu: Annotated[bool, Parameter(negative="")] = False,
    cpu_experts: CpuExperts = "none",
    threads: int | None = None,
    rounds: int = 5,
    prompt_tokens: int = 256,
    decode_tokens: int = 32,
    json: GivenPath | None = None,
) -> None:
    """Run one GGUF file in Strata and in llama.cpp, in turns, and compare their speed.

    Parameters
    ----------
    model
        A GGUF file; llama.cpp is the Python package llama-cpp-python, which strata does not bring along.
    cpu
        On the processor.
    gpu
        On the GPU, everything in its memory; llama.cpp must have been built for it.
    cpu_experts
        With --gpu: routed experts that lie in main memory. all: every one; half: of each layer half in Strata, of half
        of the layers all in llama.cpp, at its fastest of four settings.
    threads
        Threads of both; one for each core that may be used if not given.
    rounds
        How often each of the two has its turn.
    prompt_tokens
        Tokens of the prompt that is read.
    decode_tokens
        Tokens that follow one by one.
    json
        Also write everything to this file.
    """
    if cpu == gpu:
        raise SettingsError("strata bench peer compares on the processor or on the GPU: give --cpu or --gpu")
    if cpu_experts != "none" and not gpu:
        raise SettingsError(f"--cpu-experts {cpu_experts} goes with --gpu: without it every expert is there")
    if rounds < 1 or prompt_tokens < 1 or decode_tokens < 2:
        raise SettingsError("--rounds and --prompt-tokens must be at least 1, --decode-tokens at least 2")
    check_report_file(json)
    device = "cuda" if gpu else "cpu"
    plan = PeerPlan(
        model, threads or read_cpu().usable_cores, rounds, prompt_tokens, decode_tokens, device, cpu_experts
    )
    report = compare_with_peer(plan)
    _show(report)
    write_report(json, report.as_json())


def _show(report: PeerReport) -> None:
    console = Console(highlight=False)
    plan = report.plan
    console.print(
        Text(f"{printable(plan.file.name)} on {report.hardware}; {plan.rounds} rounds in turns"), soft_wrap=True
    )
    table = Table("tokens a second", box=None, padding=(0, 2, 0, 0), header_style="cyan")
    for name in ("strata", "llama.cpp", "ratio"):
        table.add_column(name, justify="right")
    ratios = {"prompt": report.prompt_ratio, "decode": report.decode_ratio}
    for name, tokens in (("prompt", plan.prompt_tokens), ("decode", plan.decode_tokens)):
        mine, theirs = report.ours[name], report.theirs[name]
        table.add_row(f"{name} {tokens}", _cell(mine), _cell(theirs), f"{ratios[name]:.2f}")
    console.print(table)
    if report.decode_parts:
        total = sum(report.decode_parts.values())
        parts = ", ".join(f"{name} {100 * seconds / total:.0f} %" for name, seconds in report.decode_parts.items())
        console.print(Text(f"our decode: {parts}"), soft_wrap=True)
    if plan.cpu_experts != "none":
        start = report.peer_start
        memory = "memory that is not pinned" if start.placement.no_host else "pinned memory"
        console.print(
            Text(
                f"experts in main memory: {plan.cpu_experts}; llama.cpp was fastest with {start.threads} threads and "
                f"experts in {memory}, Strata has {plan.our_threads} threads"
            ),
            soft_wrap=True,
        )
    console.print(Text(f"peer {report.peer}; KL of the prompt's last row {report.kl:.1e}"), soft_wrap=True)


def _cell(speed: Speed) -> str:
    return f"{speed.median:,.1f} ({speed.lowest:,.1f} to {speed.highest:,.1f})"
