"""Small pieces that several APIs write alike: compact JSON, SSE lines, usage, timings, ids.

Knows no API as a whole.
"""

import json
import secrets
from typing import Any

from strata.types import Usage

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)
DONE = b"data: [DONE]\n\n"


def to_json(value: Any) -> bytes:
    """Compact JSON as UTF-8; half of a surrogate pair, which no client reads, becomes a question mark."""
    return _ENCODER.encode(value).encode("utf-8", "replace")


def data_event(value: Any) -> bytes:
    """One SSE event of the OpenAI chat and completions APIs."""
    return b"data: " + to_json(value) + b"\n\n"


def named_event(name: str, value: Any) -> bytes:
    """One SSE event with a name, as the Responses and the Anthropic API send them."""
    return b"event: " + name.encode() + b"\ndata: " + to_json(value) + b"\n\n"


def new_id(prefix: str) -> str:
    """`prefix` and 24 random characters."""
    return prefix + secrets.token_hex(12)


def openai_usage(usages: list[Usage], reasoning_tokens: int) -> dict[str, Any]:
    """Usage of all choices of one prompt: the prompt counts once."""
    prompt = max((usage.prompt_tokens for usage in usages), default=0)
    completion = sum(usage.completion_tokens for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": max((usage.cached_tokens for usage in usages), default=0)},
        "completion_tokens_details": {
            "reasoning_tokens": reasoning_tokens,
            "accepted_prediction_tokens": sum(usage.accepted_drafts for usage in usages),
            "rejected_prediction_tokens": sum(usage.drafted_tokens - usage.accepted_drafts for usage in usages),
        },
    }


def timings(usage: Usage) -> dict[str, Any]:
    """What a reply took, in the names of llama.cpp; milliseconds."""
    read = usage.prompt_tokens - usage.cached_tokens
    return {
        "cache_n": usage.cached_tokens,
        "prompt_n": read,
        "prompt_ms": _rounded(1000 * usage.read_seconds),
        "prompt_per_token_ms": _rounded(1000 * usage.read_seconds / read) if read else 0.0,
        "prompt_per_second": _rounded(usage.prompt_tokens_per_second),
        "predicted_n": usage.completion_tokens,
        "predicted_ms": _rounded(1000 * usage.decode_seconds),
        "predicted_per_token_ms": _rounded(1000 * usage.decode_seconds / max(1, usage.completion_tokens - 1)),
        "predicted_per_second": _rounded(usage.tokens_per_second),
        "draft_n": usage.drafted_tokens,
        "draft_n_accepted": usage.accepted_drafts,
        "waiting_ms": _rounded(1000 * usage.waiting_seconds),
    }


def _rounded(value: float) -> float:
    return round(value, 3)
