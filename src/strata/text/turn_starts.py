"""Where the turns of a rendered chat begin, as positions of its tokens. Knows templates by what they write.

A template marks turns by control tokens of its own, which nobody's text can hold. Which of them begin turns is found
once, by a chat whose messages are words that no template has: between two of those words stands what ends one turn
and begins the next.

    <|im_start|> system  WORD <|im_end|> <|im_start|> user  WORD <|im_end|> <|im_start|> assistant
                                         ^ begins a turn: the first control token that is no end of text
"""

import itertools
import logging
import secrets
from collections.abc import Sequence

from strata.errors import RequestError, StrataError
from strata.text.chat_template import ChatTemplate, RenderedPrompt, TemplateLostError, TemplateTimeError
from strata.text.tokenizer import Tokenizer

_ROLES = (("system", "user", "assistant", "user"), ("user", "assistant", "user"))  # some templates know no system
_log = logging.getLogger("strata.text")


class TurnStarts:
    """Of one tokenizer and its template. For any thread: two that look at once find the same."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._starting: frozenset[int] | None = None if tokenizer.chat_template is not None else frozenset()

    def of(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Rising positions behind the first token; empty if the template's turns cannot be told by its tokens."""
        starting = self._starting_tokens()
        return tuple(place for place, token in enumerate(token_ids) if token in starting and place)

    def _starting_tokens(self) -> frozenset[int]:
        if self._starting is None:
            try:
                self._starting = _found_in(self._tokenizer)
            except (TemplateTimeError, TemplateLostError):  # says nothing of the template: looked for again
                return frozenset()
            except StrataError as failure:
                _log.info("where turns begin cannot be told: %s", failure)
                self._starting = frozenset()
        return self._starting


def _found_in(tokenizer: Tokenizer) -> frozenset[int]:
    """Raises what rendering raises, if the template takes no chat of the usual roles."""
    template = tokenizer.chat_template
    assert template is not None, "only a template writes turns"
    words = [f"w{secrets.token_hex(8)}" for _ in _ROLES[0]]
    rendered = _rendered(template, words)
    beginning = {token.token_id for token in tokenizer.added_tokens if token.control} - tokenizer.eos_token_ids
    found: set[int] = set()
    for between in _between(rendered.text, words):
        tokens = tokenizer.encode_prompt(RenderedPrompt(between, ""))
        found.update([token for token in tokens if token in beginning][:1])
    return frozenset(found)


def _rendered(template: ChatTemplate, words: Sequence[str]) -> RenderedPrompt:
    for roles in _ROLES[:-1]:
        try:
            return _render(template, roles, words)
        except RequestError:
            continue
    return _render(template, _ROLES[-1], words)


def _render(template: ChatTemplate, roles: Sequence[str], words: Sequence[str]) -> RenderedPrompt:
    return template.render([{"role": role, "content": word} for role, word in zip(roles, words, strict=False)])


def _between(text: str, words: Sequence[str]) -> list[str]:
    """What stands behind each word up to the next one, or to the end."""
    places = sorted((text.find(word), len(word)) for word in words if word in text)
    bounds = [*places, (len(text), 0)]
    return [text[start + length : stop] for (start, length), (stop, _) in itertools.pairwise(bounds)]
