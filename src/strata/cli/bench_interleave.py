"""`strata bench interleave`: requests that get in each other's way, and whether each gets the tokens it gets alone.

Knows flags and the table; the requests are in `strata.bench.interleave`.
"""

import json as json_text
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from strata.bench.interleave import LEAST_PIECE, LEAST_SLOTS, Check, Interleave, InterleavePlan, interleave_modes
from strata.bench.join_model import JoinEngine, load_engine
from strata.cli.console import printable, progress_bar, report_notices
from strata.cli.exit_codes import EXIT_ENGINE_FAILED, EXIT_OK
from strata.cli.flags import FLAT, EngineFlags, GivenPath, WholeNumber, said
from strata.cli.report_file import check_report_file, write_report
from strata.errors import SettingsError
from strata.settings import resolve

CHUNKS_OF_A_PIECE = 2
SHORT_GAP_MS = 1.0  # windows between any two steps


def interleave(
    *,
    model: GivenPath | None = None,
    piece: WholeNumber | None = None,
    few: Annotated[bool, Parameter(negative="")] = False,
    seed: WholeNumber = InterleavePlan.seed,
    json: GivenPath | None = None,
    engine: Annotated[EngineFlags | None, FLAT] = None,
) -> int:
    """Run requests beside each other in every read mode; each must get the tokens that it gets alone.

    Parameters
    ----------
    model
        A model directory or GGUF file; the small model that ships with strata if not given.
    piece
        Tokens of a piece in the mode pieces, whole chunks; two chunks if not given. The long prompts are two and a half
        and three and a half of them.
    few
        Replies of a few tokens, for devices that are slow.
    seed
        Of the prompts.
    json
        Also write everything to this file.
    """
    given = said(engine)
    usual = {"slots": LEAST_SLOTS, "max_gap_ms": SHORT_GAP_MS}
    given |= {name: value for name, value in usual.items() if given.get(name) is None}
    given["read_mode"] = given["piped_read_piece"] = None  # every mode has its turn
    settings = resolve(given).engine
    check_report_file(json)
    if settings.slots is not None and settings.slots < LEAST_SLOTS:
        raise SettingsError(f"--slots {settings.slots} does not work; {LEAST_SLOTS} or more do")
    with progress_bar() as progress:
        loaded = load_engine(model, settings, progress)
    report_notices(loaded.notices)
    plan = _plan(piece, loaded, InterleavePlan.few() if few else InterleavePlan(), seed)
    test, console = Interleave(loaded.engine, loaded.served, settings, plan), Console(highlight=False)
    served = loaded.served
    line = f"{loaded.name} on {loaded.device}: {served.slots} slots in {served.groups} groups, pieces of {plan.piece:,}"
    console.print(Text(printable(line)), soft_wrap=True)
    found: dict[str, Sequence[Check]] = {}
    for mode in interleave_modes(plan.piece):
        found[mode.name] = test.run(mode)
        for check in found[mode.name]:
            told = f"{mode.name}: {check.what}: {'yes' if check.is_good else 'NO'}"
            console.print(Text(f"{told} ({check.found})" if check.found else told), soft_wrap=True)
    write_report(json, json_text.dumps({name: [asdict(check) for check in checks] for name, checks in found.items()}))
    return _told(found, console)


def _plan(piece: int | None, loaded: JoinEngine, usual: InterleavePlan, seed: int) -> InterleavePlan:
    chunk_rows, context = loaded.engine.chunk_rows, loaded.engine.context
    rows = CHUNKS_OF_A_PIECE * chunk_rows if piece is None else piece
    if rows < LEAST_PIECE or rows % chunk_rows:
        raise SettingsError(
            f"--piece {rows} does not work; a multiple of the {chunk_rows:,} rows of a chunk from {LEAST_PIECE} on does"
        )
    plan = replace(usual.with_piece(rows), seed=seed)
    if plan.context >= context:
        raise SettingsError(
            f"pieces of {rows:,} tokens make prompts of {plan.context:,}, and the context holds {context:,}: give a "
            "smaller --piece or a smaller --chunk-rows"
        )
    return plan


def _told(found: Mapping[str, Sequence[Check]], console: Console) -> int:
    """The last line, and the exit code."""
    wrong = sum(not check.is_good for checks in found.values() for check in checks)
    total = sum(map(len, found.values()))
    console.print(Text(f"{total - wrong} of {total} are so" + (f", {wrong} are not" if wrong else "")))
    return EXIT_ENGINE_FAILED if wrong else EXIT_OK
