"""Log-probabilities of tokens as the OpenAI chat and Responses APIs show them."""

from typing import Any

from strata.sampling.draw import Draw
from strata.text.tokenizer import Tokenizer


def token_json(tokenizer: Tokenizer, draw: Draw, text: str, top: int) -> dict[str, Any]:
    """A token with its `top` likeliest alternatives; `text` is what it stands for in its place."""
    return {
        "token": text,
        "logprob": draw.logprob,
        "bytes": list(tokenizer.token_bytes(draw.token_id)),
        "top_logprobs": [
            {
                "token": tokenizer.token_bytes(likely.token_id).decode("utf-8", "replace"),
                "logprob": likely.logprob,
                "bytes": list(tokenizer.token_bytes(likely.token_id)),
            }
            for likely in draw.top_logprobs[:top]
        ],
    }
