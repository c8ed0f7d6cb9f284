"""Completions in the words of the OpenAI API: fields, the whole answer, the chunks of a stream, echoed prompts.

Knows that API's shapes; not where a reply comes from.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from strata.sampling.draw import Draw
from strata.server.asking import SamplingFields
from strata.server.errors import ApiError, openai_error
from strata.server.replies import Choice, Over, PromptScored, ReplyPart, Said
from strata.server.wire.events import DONE, data_event, new_id, openai_usage, timings
from strata.text.reply_events import ContentText, TokenShown
from strata.text.tokenizer import Tokenizer

USUAL_TOKENS = 16  # as the API says
MOST_LOGPROBS = 20


class CompletionRequest(SamplingFields):
    """POST /v1/completions. Fields that are not listed are ignored."""

    prompt: str | list[str] | list[int] | list[list[int]]
    model: str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    n: int | None = None
    best_of: int | None = None
    max_tokens: int | None = None
    logprobs: int | bool | None = None
    echo: bool | None = None
    suffix: str | None = None
    return_token_ids: bool | None = None

    @property
    def wanted_logprobs(self) -> int | None:
        """How many likely tokens to report with each token; None: no log-probabilities."""
        wanted = self.logprobs
        if wanted is None or wanted is False:
            return None
        if not 0 <= wanted <= MOST_LOGPROBS:
            raise ApiError(400, f"logprobs is {wanted}; it must be from 0 to {MOST_LOGPROBS}", param="logprobs")
        return int(wanted)

    @property
    def wanted_tokens(self) -> int | None:
        """Most tokens of a reply that the engine is asked for; -1: as many as fit, None: nothing is said."""
        return None if self.max_tokens is None else -1 if self.max_tokens < 0 else max(1, self.max_tokens)

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """Every prompt, as text or as token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and all(isinstance(part, int) for part in self.prompt):
            return [cast("list[int]", self.prompt)]
        return cast("list[str] | list[list[int]]", self.prompt)

    def check(self) -> None:
        """ApiError 400 for what this server cannot do."""
        if self.suffix:
            raise ApiError(400, "suffix is given; this server does not fill in between texts", param="suffix")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ApiError(400, f"best_of is {self.best_of}; only the value of n works here", param="best_of")


@dataclass(frozen=True)
class EchoedPrompt:
    """A prompt as it is given back."""

    text: str
    token_ids: tuple[int, ...]


class CompletionWriter:
    """Writes one answer to one request; stateful for streams. Choice i belongs to prompt i // n."""

    def __init__(
        self, body: CompletionRequest, model: str, tokenizer: Tokenizer, prompts: Sequence[EchoedPrompt]
    ) -> None:
        self._body = body
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._n = body.n or 1
        self._top = body.wanted_logprobs
        self._drops_reply = body.max_tokens == 0
        self._head = {"id": new_id("cmpl-"), "object": "text_completion", "created": int(time.time()), "model": model}
        self._scores: dict[int, Sequence[Draw]] = {}
        self._offsets = [0] * (len(prompts) * self._n)
        self._has_begun: set[int] = set()
        self._overs: dict[int, Over] = {}

    def feed(self, part: ReplyPart) -> bytes:
        """The events of a stream that tell a part."""
        if isinstance(part, PromptScored):
            self._scores[part.choice] = part.logprobs
        if isinstance(part, Said):
            text = "".join(event.text for event in part.events if isinstance(event, ContentText))
            shown = [event for event in part.events if isinstance(event, TokenShown)]
            return self._begin(part.choice) + self._said(part.choice, text, shown, part.token_ids)
        if isinstance(part, Over):
            self._overs[part.choice] = part
            made = self._made(part.choice, "", None, part.reason, part.stop)
            return self._begin(part.choice) + data_event(
                self._head | {"choices": [made], "timings": timings(part.usage)}
            )
        return b""

    def end(self) -> bytes:
        """What follows the last part."""
        if not (self._body.stream_options or {}).get("include_usage"):
            return DONE
        overs = [self._overs[choice] for choice in sorted(self._overs)]
        return data_event(self._head | {"choices": [], "usage": self._usage(overs)}) + DONE

    def failure(self, error: ApiError) -> bytes:
        """An error behind the first byte."""
        return data_event(openai_error(error))

    def answer(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The whole answer."""
        overs = [choice.over for choice in choices if choice.over is not None]
        made = [self._choice(choice, over) for choice, over in zip(choices, overs, strict=True)]
        answer = self._head | {"choices": made, "usage": self._usage(overs), "timings": timings(overs[0].usage)}
        notices = [notice for over in overs for notice in over.notices]
        return answer | ({"warnings": list(dict.fromkeys(notices))} if notices else {})

    def _choice(self, choice: Choice, over: Over) -> dict[str, Any]:
        text, logprobs = "", None
        if self._body.echo:
            prompt = self._prompts[over.choice // self._n]
            text = prompt.text
            if self._top is not None and choice.prompt_logprobs is not None:
                logprobs = self._listed(over.choice, [(d, self._name(d.token_id)) for d in choice.prompt_logprobs])
        if not self._drops_reply:
            text += choice.content
            if self._top is not None:
                logprobs = _joined(logprobs, self._shown(over.choice, choice.tokens))
        made = self._made(over.choice, text, logprobs, over.reason, over.stop)
        if self._body.return_token_ids:
            made["token_ids"] = [] if self._drops_reply else choice.token_ids
            made["prompt_token_ids"] = list(self._prompts[over.choice // self._n].token_ids)
        return made

    def _begin(self, choice: int) -> bytes:
        """The echoed prompt, once."""
        if choice in self._has_begun:
            return b""
        self._has_begun.add(choice)
        if not self._body.echo:
            return b""
        scores = self._scores.get(choice)
        logprobs = None if scores is None else self._listed(choice, [(d, self._name(d.token_id)) for d in scores])
        made = self._made(choice, self._prompts[choice // self._n].text, logprobs, None, None)
        return data_event(self._head | {"choices": [made]})

    def _said(self, choice: int, text: str, shown: Sequence[TokenShown], token_ids: Sequence[int]) -> bytes:
        if self._drops_reply or not (text or shown or self._body.return_token_ids):
            return b""
        made = self._made(choice, text, None if self._top is None else self._shown(choice, shown), None, None)
        if self._body.return_token_ids:
            made["token_ids"] = list(token_ids)
        return data_event(self._head | {"choices": [made]})

    def _made(
        self, choice: int, text: str, logprobs: dict[str, Any] | None, reason: str | None, stop: str | None
    ) -> dict[str, Any]:
        made = {"index": choice, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return made | ({"stop_reason": stop} if reason is not None else {})

    def _usage(self, overs: Sequence[Over]) -> dict[str, Any]:
        """Every prompt counts once, every reply as often as it was made."""
        usage = openai_usage([over.usage for over in overs], 0)
        prompts = sum(len(prompt.token_ids) for prompt in self._prompts)
        replies = 0 if self._drops_reply else usage["completion_tokens"]
        usage |= {"prompt_tokens": prompts, "completion_tokens": replies, "total_tokens": prompts + replies}
        return usage

    def _shown(self, choice: int, tokens: Sequence[TokenShown]) -> dict[str, Any]:
        return self._listed(choice, [(token.draw, token.text) for token in tokens if token.is_content])

    def _listed(self, choice: int, tokens: Sequence[tuple[Draw, str]]) -> dict[str, Any]:
        offsets = []
        for _, text in tokens:
            offsets.append(self._offsets[choice])
            self._offsets[choice] += len(text)
        return {
            "tokens": [text for _, text in tokens],
            "token_logprobs": [draw.logprob for draw, _ in tokens],
            "top_logprobs": [self._likeliest(draw, text) for draw, text in tokens],
            "text_offset": offsets,
        }

    def _likeliest(self, draw: Draw, text: str) -> dict[str, float] | None:
        """Likely tokens by their text, the chosen one always among them."""
        if draw.logprob is None:
            return None
        likeliest: dict[str, float] = {}
        for top in draw.top_logprobs[: self._top]:
            likeliest.setdefault(self._name(top.token_id), top.logprob)
        likeliest.setdefault(text, draw.logprob)
        return likeliest

    def _name(self, token_id: int) -> str:
        """A token's text, or its bytes where they are no text, as the API writes them."""
        held = self._tokenizer.token_bytes(token_id)
        try:
            return held.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in held)


def _joined(first: dict[str, Any] | None, second: dict[str, Any]) -> dict[str, Any]:
    return second if first is None else {name: first[name] + second[name] for name in first}
