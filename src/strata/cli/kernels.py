"""`strata kernels`: which kernels were compiled for this PC's card; `--precompile` compiles what a model needs.

Knows how it looks; what is compiled and how is in `strata.engine.precompile`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from strata import models_shipped
from strata.build import choose_device, compile_request, one_of_each_kind
from strata.cli.console import printable, progress_bar
from strata.cli.flags import FLAT, EngineFlags, GivenPath, said
from strata.engine.precompile import mark_compiled, marker_of, precompile, processes_that_fit
from strata.engine.stage_devices import is_staged
from strata.errors import SettingsError
from strata.hardware import read_cpu, read_gpus, read_memory, why_no_gpu
from strata.kernels.compiled import CachedKernels, cached_kernels
from strata.settings import EngineSettings, kernel_cache_folder, resolve
from strata.weights.opening import open_model


def kernels(
    *,
    model: GivenPath | None = None,
    compile_all: Annotated[bool, Parameter(name="--precompile", negative="")] = False,
    engine: Annotated[EngineFlags | None, FLAT] = None,
) -> None:
    """Say which compiled kernels are kept; with --precompile compile those of a model first.

    Parameters
    ----------
    model
        A model directory or GGUF file; the small model that ships with strata if not given.
    compile_all
        Compile what the model's windows need, in as many processes as fit. The folder may be copied to other PCs with
        the same card and driver.
    """
    if model is not None and not compile_all:
        raise SettingsError("--model says whose kernels --precompile compiles: give both, or neither")
    settings = resolve(said(engine)).engine
    console = Console(highlight=False)
    if compile_all:
        found = _compile(model or models_shipped.default_path(), settings)
        console.print(Text(f"{found:,} kernels of this model are compiled"), soft_wrap=True)
    show(cached_kernels(kernel_cache_folder(settings)), console)


def show(cached: CachedKernels, console: Console) -> None:
    """Print what lies in the folder."""
    if not cached.names:
        console.print(Text(f"{printable(str(cached.folder))} holds no kernels"), soft_wrap=True)
        return
    mib = cached.total_bytes / (1 << 20)
    sentence = f"{printable(str(cached.folder))} holds {len(cached.names):,} compiled kernels in {mib:.1f} MiB"
    console.print(Text(sentence), soft_wrap=True)
    for name in dict.fromkeys(cached.names):
        console.print(Text(f"  {cached.names.count(name):4} x {printable(name)}"), soft_wrap=True)


def _compile(model: Path, settings: EngineSettings) -> int:
    if not read_gpus():
        raise SettingsError(f"--precompile does not work here, kernels are compiled for a card: {why_no_gpu()}")
    source = open_model(model, settings.quantize)
    asked = settings if is_staged(settings) else replace(settings, device="cuda")
    cards = one_of_each_kind(choose_device(source, asked).cards)
    if not cards:
        raise SettingsError(f"--precompile does not work with devices {settings.devices}: name a card, as in cuda:0")
    found = 0
    for card in cards:
        request = compile_request(model, settings, card)
        processes = processes_that_fit(read_cpu().usable_cores, card.facts.free_bytes, read_memory().usable)
        with progress_bar() as progress:
            found += precompile(request, processes, progress)
        mark_compiled(marker_of(request, source, card.facts))
    return found
