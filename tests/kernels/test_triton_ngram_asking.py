"""Triton's asking for rows of a table in a file, in its interpreter: requests and rows are those of the definition."""

import threading

import pytest
import torch

from strata.kernels.expert_plan.tables import OPEN, RAISED
from strata.kernels.packed_rows.rows_out import RowsOut
from tests.kernels.interpreter import needs_interpreter
from tests.kernels.ngram_asking import AskingCase, asked_table
from tests.kernels.ngram_cases import random_hash
from tests.kernels.random_matrices import KINDS, random_matrix
from tests.kernels.window_cases import window_of

pytestmark = needs_interpreter

CPU = torch.device("cpu")
SEGMENTS = [(2, 4), (0, 1), (3, 0), (1, 2)]  # slot 3 has no rows; one row of the bucket is unused
KIND = {kind.name: kind for kind in KINDS}


def case_of(columns: int, ngram_size: int = 3, heads_per_ngram: int = 2) -> AskingCase:
    """Heads of so many columns; some n-grams reach an end of text."""
    hash = random_hash(8, 20, ngram_size, heads_per_ngram)
    table = random_matrix(5, KIND["f32"].layout(int(hash.head_sizes.sum()), columns))
    history = torch.randint(8, (4, ngram_size - 1), generator=torch.Generator().manual_seed(1)).int()
    rows = window_of(SEGMENTS, 8, vocabulary=8, seed=3)
    assert bool((rows.tokens[:7] == hash.end_of_text).any())
    return AskingCase(rows, history, hash, table, list(range(7)))


@pytest.mark.parametrize(
    ("columns", "ngram_size", "heads", "has_gate"),
    [(160, 3, 2, False), (160, 3, 2, True), (8, 3, 2, False), (24, 2, 3, False), (40, 4, 1, False), (672, 2, 1, True)],
)
def test_requests_and_rows_are_those_of_the_definition(
    columns: int, ngram_size: int, heads: int, has_gate: bool
) -> None:
    from strata.kernels.ngram_rows import collect, request

    case = case_of(columns, ngram_size, heads)
    case.check(CPU, request.ngram_ask, collect.ngram_collect, has_gate=has_gate)


def test_more_places_than_fit_at_once_are_asked_for_in_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    from strata.kernels.ngram_rows import collect, request

    monkeypatch.setattr(request, "LEAST_PLACES", 16)
    monkeypatch.setattr(request, "MOST_PLACES", 16)
    case_of(160).check(CPU, request.ngram_ask, collect.ngram_collect)


def test_where_no_row_is_used_nobody_is_asked_or_waited_for() -> None:
    from strata.kernels.ngram_rows import collect, request

    case, asked = case_of(160), asked_table(8, 4, 160, has_gate=True)
    case.rows.slots.fill_(-1)
    request.ngram_ask(case.rows, case.history, case.hash, asked)
    assert (int(asked.mailbox.door), int(asked.state.number), int(asked.mailbox.gate)) == (0, 0, OPEN)  # type: ignore[arg-type]
    plain = torch.full((8, 640), 7.0)
    collect.ngram_collect(case.rows, asked, RowsOut(plain, None))
    assert bool((plain == 7.0).all())


def test_a_raised_flag_ends_every_wait_and_opens_the_gate() -> None:
    from strata.kernels.ngram_rows import collect, request

    case, asked = case_of(160), asked_table(8, 4, 160, has_gate=True)
    asked.mailbox.done.fill_(RAISED)
    request.ngram_ask(case.rows, case.history, case.hash, asked)
    assert int(asked.mailbox.gate) == OPEN  # type: ignore[arg-type]
    asked.state.number.fill_(RAISED - 1)
    collecting = threading.Thread(
        target=collect.ngram_collect, args=(case.rows, asked, RowsOut(torch.zeros(8, 640), None)), daemon=True
    )
    collecting.start()
    collecting.join(20)
    assert not collecting.is_alive()
