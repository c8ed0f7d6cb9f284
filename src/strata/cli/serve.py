"""`strata serve`: the model behind HTTP, for any client of the OpenAI or the Anthropic API.

Knows flags and what is printed; the server is `strata.server`.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from strata.cli.console import printable, write_line
from strata.cli.exit_codes import EXIT_OK
from strata.cli.flags import FLAT, EngineFlags, GenerationFlags, ServerFlags, said
from strata.cli.serve_stage import serve_stage
from strata.errors import SettingsError
from strata.settings import resolve

if TYPE_CHECKING:
    from strata.server.parts import Parts

_NEEDED = ("fastapi", "uvicorn", "prometheus_client", "pydantic")
_GIB = 2**30


def serve(
    path: Path | None = None,
    /,
    *,
    model: Path | None = None,
    server: Annotated[ServerFlags | None, FLAT] = None,
    engine: Annotated[EngineFlags | None, FLAT] = None,
    generation: Annotated[GenerationFlags | None, FLAT] = None,
) -> int:
    """Answer clients over HTTP until Ctrl-C.

    Parameters
    ----------
    path
        A model directory or GGUF file; the small model that ships with strata if not given.
    model
        The same as a flag, as other commands take it.
    """
    if path is not None and model is not None:
        raise SettingsError(f"two models are given, {path} and --model {model}: give one")
    model = path or model
    settings = resolve(said(server, engine, generation))
    name = None if model is None else str(model)
    if settings.engine.stages and serve_stage(name, settings.engine, _tell):
        return EXIT_OK
    missing = [each for each in _NEEDED if find_spec(each) is None]
    if missing:
        raise SettingsError(f"strata serve needs {', '.join(missing)}: pip install 'strata-moe[server]'")
    from strata.server import run

    run.serve(name, settings, _tell_addresses, _tell_facts, _tell_draining)
    return EXIT_OK


def _tell_addresses(parts: "Parts") -> None:
    for address in parts.addresses:
        _tell(f"listening on {address}; the model is being loaded")


def _tell_facts(parts: "Parts") -> None:
    facts = parts.service.facts
    assert facts is not None
    for notice in facts.notices:
        write_line(f"note: {notice}")
    _tell(f"{parts.model_name}: {facts.family}, {facts.parameters:,} parameters, context {facts.context:,} tokens")
    states, slots = facts.slots * facts.slot_bytes, "1 slot" if facts.slots == 1 else f"{facts.slots} slots"
    _tell(
        f"memory: weights {facts.weight_bytes / _GIB:.2f} GiB, {slots} of "
        f"{facts.slot_bytes / _GIB:.2f} GiB, together {(facts.weight_bytes + states) / _GIB:.2f} GiB; keys and values "
        f"as {facts.kv_kind}"
    )
    if facts.slot_costs:
        _tell(f"slots: {facts.slot_costs}")
    for address in parts.addresses:
        _tell(f"ready: OpenAI clients use {address}/v1, Anthropic clients {address}")


def _tell_draining(parts: "Parts") -> None:
    running = parts.service.running
    replies = "1 reply" if running == 1 else f"{running} replies"
    seconds = parts.settings.server.drain_seconds
    _tell(f"waiting for {replies}, at most {seconds:g} s; Ctrl-C again ends them")


def _tell(line: str) -> None:
    print(printable(line), flush=True)
