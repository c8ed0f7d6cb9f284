"""What is said of a prompt that the context cannot hold."""

import pytest

from strata.server.context_limit import ContextLimit
from strata.server.errors import ApiError


def test_a_bound_and_a_count_are_told_apart() -> None:
    limit = ContextLimit(context=10, trained_context=20)
    limit.check_least(9, "input")
    limit.check(9, "input")
    with pytest.raises(ApiError, match="has at least 10 tokens and this server's context 10") as refusal:
        limit.check_least(10, "input")
    assert (refusal.value.status, refusal.value.code, refusal.value.param) == (400, "context_length_exceeded", "input")
    with pytest.raises(ApiError, match=r"has 10 tokens .* start the server with a larger --context"):
        limit.check(10, "input")
