"""What a model thinks before it answers: its markers, and whether a prompt ends inside of it.

Knows templates and prompts as text; the split of a reply itself is `reply.py`'s matter.
"""

from dataclasses import dataclass

from strata.text.chat_template import RenderedPrompt
from strata.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ReasoningMarkers:
    """The literals around a model's reasoning."""

    opening: str
    closing: str


# By how many published models use them. A model has a pair if both are added tokens of its tokenizer, or if its
# template writes the closing one.
_KNOWN = (
    ReasoningMarkers("<think>", "</think>"),
    ReasoningMarkers("[THINK]", "[/THINK]"),
    ReasoningMarkers("<seed:think>", "</seed:think>"),
)


def reasoning_markers_of(tokenizer: Tokenizer) -> ReasoningMarkers | None:
    """The markers of a model's reasoning; None if it has none."""
    template = tokenizer.chat_template.source if tokenizer.chat_template is not None else ""
    for markers in _KNOWN:
        are_tokens = tokenizer.token_id(markers.opening) is not None and tokenizer.token_id(markers.closing) is not None
        if are_tokens or markers.closing in template:
            return markers
    return None


def ends_in_reasoning(prompt: RenderedPrompt, markers: ReasoningMarkers, tokenizer: Tokenizer) -> bool:
    """Whether the reply to this prompt begins inside the reasoning, because the template opened it (`<think>\\n`).

    Only the template's own markers count (a user's text keeps its marks), and only those behind the last end of a turn.
    """
    turn = _reply_so_far(prompt, tokenizer)
    return turn.rfind(markers.opening) > turn.rfind(markers.closing)


def may_begin_reasoning(prompt: RenderedPrompt, markers: ReasoningMarkers, tokenizer: Tokenizer) -> bool:
    """Whether the model may open its reasoning by itself: the template has neither opened it nor closed it already."""
    turn = _reply_so_far(prompt, tokenizer)
    return markers.opening not in turn and markers.closing not in turn


def _reply_so_far(prompt: RenderedPrompt, tokenizer: Tokenizer) -> str:
    """What the template has written behind the last end of a turn."""
    ends = [token.literal for token in tokenizer.added_tokens if token.token_id in tokenizer.eos_token_ids]
    begin = max((prompt.marked_text.rfind(end) for end in ends), default=-1)
    return prompt.marked_text[max(begin, 0) :]
