"""The model's text as the server needs it: conversations to prompts, and how the reply to a prompt is read.

Knows tokenizer, template and dialect of one model; no API. Its methods compute: call them from a thread.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from strata.engine.messages import TokenizerFiles
from strata.engine.request import TokenRequest
from strata.errors import TemplateError
from strata.sampling.grammar_spec import GrammarKind, GrammarSpec
from strata.server.context_limit import ContextLimit
from strata.server.errors import ApiError
from strata.server.memory import give_back
from strata.text.chat_template import (
    RenderedPrompt,
    TemplateLimits,
    TemplateLostError,
    TemplateOutputError,
    TemplateTimeError,
)
from strata.text.reasoning import ReasoningMarkers, ends_in_reasoning, may_begin_reasoning, reasoning_markers_of
from strata.text.reply import ReplyFormat, ReplyReader
from strata.text.tokenizer import Tokenizer, tokenizer_from_files
from strata.text.tool_calls.dialect import Tool
from strata.text.tool_calls.dialects import dialect_wanted
from strata.text.tool_calls.grammar import rule_of, tool_grammar
from strata.text.turn_starts import TurnStarts


@dataclass(frozen=True)
class Calls:
    """What calls of tools a reply may hold."""

    shown: tuple[Mapping[str, Any], ...] = ()  # to the template: {type: function, function: {name, parameters, ..}}
    allowed: tuple[Tool, ...] = ()
    is_required: bool = False  # the reply is nothing but calls
    is_parallel: bool = True  # there may be several
    is_strict: bool = False  # arguments follow their schemas even where the reply may do without calls


NO_CALLS = Calls()


@dataclass(frozen=True)
class Conversation:
    """What a chat prompt is made of, in the template's own form."""

    messages: Sequence[Mapping[str, Any]]
    calls: Calls = NO_CALLS
    variables: Mapping[str, Any] = field(default_factory=dict)
    continues_last: bool = False  # the last message is the beginning of the reply
    asks_for_reply: bool = True
    notices: tuple[str, ...] = ()  # what was left out
    param: str = "messages"  # the field of the request that holds them


@dataclass(frozen=True)
class ReadyPrompt:
    """Token ids, how the reply to them is written, and what it must be."""

    token_ids: tuple[int, ...]
    format: ReplyFormat
    grammar: GrammarSpec | None = None
    most_calls: int | None = None  # the reply is over behind so many
    notices: tuple[str, ...] = ()
    param: str = "messages"  # the field of the request that it comes from
    boundaries: tuple[int, ...] = ()  # positions at which its turns begin; empty: not known


class TextSide:
    """One model's text. `tool_dialect` as the setting of this name; without a `limit` every prompt is encoded."""

    def __init__(self, files: TokenizerFiles, tool_dialect: str = "auto", limit: ContextLimit | None = None) -> None:
        self.files = files
        self._limit = limit
        self.tokenizer: Tokenizer = tokenizer_from_files(files)
        self._dialect = dialect_wanted(tool_dialect, files.chat_template)
        self._markers = reasoning_markers_of(self.tokenizer)
        self._turns = TurnStarts(self.tokenizer)
        if self.tokenizer.chat_template is not None:
            self.tokenizer.chat_template.start()

    @property
    def takes_arguments_as_text(self) -> bool:
        """Whether the template shows a call's arguments as they were written, if they are given as text."""
        return "arguments is string" in (self.files.chat_template or "")

    def close(self) -> None:
        """Let go of the template's process."""
        if self.tokenizer.chat_template is not None:
            self.tokenizer.chat_template.close()

    def render(self, conversation: Conversation) -> RenderedPrompt:
        """The conversation as the template writes it. RequestError or TemplateError as there, ApiError at a limit."""
        template = self.tokenizer.chat_template
        if template is None:
            raise ApiError(400, "this model has no chat template: use /v1/completions with text", param="messages")
        messages, sentinel = list(conversation.messages), ""
        if conversation.continues_last:
            sentinel = secrets.token_hex(16)
            messages[-1] = _with_end_mark(messages[-1], sentinel)
        try:
            rendered = template.render(
                messages,
                list(conversation.calls.shown) or None,
                add_generation_prompt=conversation.asks_for_reply and not conversation.continues_last,
                variables=conversation.variables,
            )
        except (TemplateOutputError, TemplateTimeError, TemplateLostError) as failure:
            raise self._stopped_template(failure, template.limits, conversation.param) from failure
        if not sentinel:
            return rendered
        before, found, _ = rendered.marked_text.partition(sentinel)
        if not found:
            raise ApiError(400, "this model's template does not show the last message: it cannot be continued")
        return RenderedPrompt(before, rendered.mark)

    def chat(self, conversation: Conversation, content: GrammarSpec | None = None) -> ReadyPrompt:
        """A prompt to reply to; `content` is what the reply's content must be. Errors as in `render`."""
        rendered = self.render(conversation)
        self._check_length(rendered.text, conversation.param)
        token_ids = self._encoded(rendered)
        markers, calls = self._markers, conversation.calls
        inside = markers is not None and ends_in_reasoning(rendered, markers, self.tokenizer)
        end = self.tokenizer.token_id(markers.closing) if markers is not None and inside else None
        opens = None  # markers of reasoning that the model may open by itself
        if markers is not None and not conversation.continues_last:
            opens = markers if may_begin_reasoning(rendered, markers, self.tokenizer) else None
        if calls.allowed:
            grammar = self._call_grammar(calls, content, opens)
        else:
            grammar = content and replace(content, reasoning=self._marker_ids(opens))
        return ReadyPrompt(
            token_ids,
            ReplyFormat(markers, inside, self._dialect, calls.allowed),
            None if grammar is None else replace(grammar, begins_after=end),
            None if calls.is_parallel else 1,
            conversation.notices,
            conversation.param,
            self._turns.of(token_ids),
        )

    def token_ids(self, conversation: Conversation) -> tuple[int, ...]:
        """A conversation's prompt for whoever counts: also one that the context cannot hold. Errors as in `render`."""
        return self._encoded(self.render(conversation))

    def _encoded(self, rendered: RenderedPrompt) -> tuple[int, ...]:
        token_ids = tuple(self.tokenizer.encode_prompt(rendered))
        give_back(len(rendered.marked_text))
        return token_ids

    def _stopped_template(self, failure: TemplateError, limits: TemplateLimits, param: str) -> ApiError:
        """What a client hears of a template that did not come to its end."""
        if isinstance(failure, TemplateLostError):
            return ApiError(503, "the process that renders chat templates was ended: ask again", retry_after=1)
        if isinstance(failure, TemplateTimeError):
            sentence = (
                f"the chat template is not done with them within {limits.seconds:g} s: send fewer or shorter ones"
            )
            return ApiError(400, f"{param}: {sentence}", param=param, code="template_limit")
        context = "" if self._limit is None else f" (this server's context: {self._limit.context:,} tokens)"
        sentence = (
            f"they make a prompt of more than {limits.output_characters:,} characters, which is the most{context}"
        )
        return ApiError(400, f"{param}: {sentence}: shorten them", param=param, code="context_length_exceeded")

    def _check_length(self, text: str, param: str) -> None:
        """ApiError 400 for what cannot fit, before time and memory go into its tokens."""
        if self._limit is not None:
            self._limit.check_least(self.tokenizer.least_tokens(text), param)

    def _marker_ids(self, markers: ReasoningMarkers | None) -> tuple[int, int] | None:
        """The markers as tokens; None where there are none, or where they are spelled."""
        if markers is None:
            return None
        opening, closing = self.tokenizer.token_id(markers.opening), self.tokenizer.token_id(markers.closing)
        return None if opening is None or closing is None else (opening, closing)

    def _call_grammar(
        self, calls: Calls, content: GrammarSpec | None, markers: ReasoningMarkers | None
    ) -> GrammarSpec | None:
        """The grammar of a reply that may or must call tools; None where nothing is asked of it."""
        if self._dialect is None:
            raise ApiError(
                400,
                "this model's template knows no tools, or the server was told so: leave tools out, or start it with "
                "another --tool-dialect",
                param="tools",
            )
        if not (calls.is_required or calls.is_strict or content is not None):
            return None
        is_only_calls = calls.is_required or content is not None
        source = tool_grammar(
            self._dialect, calls.allowed, self.tokenizer, is_only_calls, calls.is_parallel, reasoning=markers
        )
        if content is not None and not calls.is_required:
            source = _either(source, content)
        rules = tuple((rule_of(i), f"tools: the schema of {tool.name!r}") for i, tool in enumerate(calls.allowed))
        return GrammarSpec(GrammarKind.LARK, source, named_rules=rules)

    def plain(self, text: str) -> ReadyPrompt:
        """A text to continue."""
        self._check_length(text, "prompt")
        token_ids = tuple(self.tokenizer.encode(text, add_special_tokens=True))
        give_back(len(text))
        return ReadyPrompt(token_ids, ReplyFormat(), param="prompt")

    def reader(self, prompt: ReadyPrompt, request: TokenRequest) -> Callable[[], ReplyReader]:
        """Makes the readers of the replies to a request."""
        options = request.options
        shows = options.logprobs is not None
        return lambda: ReplyReader(self.tokenizer, prompt.format, options.stop, request.stop_token_ids, shows)


def _either(calls: str, content: GrammarSpec) -> str:
    """A grammar of calls, or of a content of JSON instead of them."""
    schemas = {GrammarKind.JSON_OBJECT: '{"type": "object"}', GrammarKind.JSON_SCHEMA: content.source}
    if content.kind not in schemas:
        raise ApiError(
            400, f"tools and a {content.kind.value} grammar do not go together: leave one out", param="tools"
        )
    schema = " ".join(schemas[content.kind].splitlines())
    return f"start: calling | said\nsaid: %json {schema}\n" + calls.replace("start:", "calling:", 1)


def _with_end_mark(message: Mapping[str, Any], mark: str) -> dict[str, Any]:
    """The message with a word behind its content, at which the rendered prompt is cut."""
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, str):
        raise ApiError(
            400,
            "continue_final_message needs a last message of the assistant with text",
            param="continue_final_message",
        )
    return dict(message, content=content + mark)
