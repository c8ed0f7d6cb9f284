"""Text to token ids and back, from a model directory's tokenizer files.

Knows the tokenizer and which of its tokens are control tokens; not what a message is (`chat_template.py`).

Control tokens in a user's text stay text. Two mechanisms, each sufficient on its side of the border:
the tokenizer here has no control token under its own name - each is renamed at load to a random name that nobody can
guess, so text that holds `<|im_end|>` becomes ordinary tokens whatever a normalizer or a merge makes of it; and where
control tokens are wanted (the template's own text, or a caller who asks for them) their literals are replaced by the
random names just before encoding. Which literals of a rendered prompt are the template's own is told by its marks.
One call of the `tokenizers` library encodes the whole prompt, so its ids equal any other implementation's.
"""

import functools
import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from strata.engine.messages import TokenizerFiles
from strata.errors import RequestError, TextError
from strata.text.chat_template import ChatTemplate, RenderedPrompt
from strata.text.detokenizer import AddedToken, Detokenizer, TokenDecoder
from strata.text.least_tokens import LeastTokens

# Added tokens that are control tokens by their look, though files do not always call them special: `<|fim_prefix|>`.
_CONTROL_LOOK = re.compile(r"<[|｜].*[|｜]>", re.DOTALL)
_SPECIAL_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")


class Tokenizer:
    """One model's tokenizer. Safe to use from several threads.

    Made by `load_tokenizer`; the arguments are the parsed files. `where` stands in error messages.
    """

    def __init__(
        self,
        tokenizer_json: Mapping[str, Any],
        tokenizer_config: Mapping[str, Any] | None = None,
        eos_token_ids: Iterable[int] = (),
        chat_template: str | None = None,
        where: str = "tokenizer.json",
    ) -> None:
        config = tokenizer_config or {}
        try:
            self.added_tokens = _added_tokens(tokenizer_json, chat_template or "")
            self._names = {token.literal: _random_name() for token in self.added_tokens if token.control}
            self._literals = _literal_pattern(tokenizer_json, self._names)
            self._tokenizer = _build(_renamed(tokenizer_json, self._names))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TextError(f"{where} does not describe a tokenizer: {error}") from error
        self._check_names(where)
        self._literal_ids = {token.literal: token.token_id for token in self.added_tokens}
        self._decoder = TokenDecoder(self._tokenizer, self.added_tokens, tokenizer_json.get("decoder"))
        specials = {name: text for name in _SPECIAL_NAMES if (text := _token_text(config.get(name))) is not None}
        eos = self._literal_ids.get(specials.get("eos_token", ""))
        self.eos_token_ids = frozenset(eos_token_ids) | ({eos} if eos is not None else set())
        self._description = tokenizer_json
        self.chat_template = None
        if chat_template is not None:
            self.chat_template = ChatTemplate(chat_template, self._names, specials, name=f"chat template of {where}")

    @property
    def vocabulary_size(self) -> int:
        """Ids that have a text; a model's output may be wider (padding)."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def token_id(self, literal: str) -> int | None:
        """The id of the added token with this literal, such as `</think>`; None if there is none."""
        return self._literal_ids.get(literal)

    def least_tokens(self, text: str) -> int:
        """How many tokens `text` has at the least, from its length alone; 0 where nothing can be said."""
        return self._bound.of(text)

    @functools.cached_property
    def _bound(self) -> LeastTokens:
        held = [self.token_bytes(token_id) for token_id in range(self.vocabulary_size)]
        return LeastTokens(self._description, held, self._literal_ids)

    def encode(self, text: str, control_tokens: bool = False, add_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`. Its control tokens stay text unless the caller asks for `control_tokens`.

        `add_special_tokens` adds what the tokenizer's own post-processor adds to a text, such as a start token.
        Raises RequestError for text that no tokenizer can read (half of a surrogate pair).
        """
        return self._encode(self._with_names(text) if control_tokens else text, add_special_tokens)

    def encode_prompt(self, prompt: RenderedPrompt) -> list[int]:
        """Token ids of a rendered chat: control tokens where the template wrote them, text where a user did."""
        named = self._with_names(prompt.marked_text)
        return self._encode(named.replace(prompt.mark, "") if prompt.mark else named, add_special_tokens=False)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Render and encode a conversation; errors as in `ChatTemplate.render`, TextError without a template."""
        if self.chat_template is None:
            raise TextError(
                "this model has no chat_template.jinja or chat_template in tokenizer_config.json; send text"
            )
        return self.encode_prompt(
            self.chat_template.render(messages, tools, add_generation_prompt=add_generation_prompt, variables=variables)
        )

    def detokenizer(self, show_special: bool = False) -> Detokenizer:
        """A new incremental detokenizer for one stream of ids."""
        return Detokenizer(self._decoder, show_special)

    def decode(self, token_ids: Iterable[int], show_special: bool = False) -> str:
        """The text of a whole sequence: what a detokenizer emits over all of it."""
        detokenizer = self.detokenizer(show_special)
        return "".join([*map(detokenizer.feed, token_ids), detokenizer.finish()])

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for in the middle of a text; a control token's are its literal's."""
        return self._decoder.token_bytes(token_id)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        try:
            # The call for several texts lets other threads run while it works, the one for a single text does not:
            # with 3.4 MB the longest pause of another thread was 0.03 s instead of 2.0 (docs/log.md, 2026-11-30).
            encoded = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
            return list(encoded.ids)
        except (UnicodeEncodeError, TypeError) as error:
            offset = next((i for i, character in enumerate(text) if "\ud800" <= character <= "\udfff"), None)
            if offset is None:
                raise
            raise RequestError(f"text holds half of a surrogate pair at character {offset}") from error

    def _with_names(self, text: str) -> str:
        return self._literals.sub(lambda match: self._names[match.group()], text) if self._names else text

    def _check_names(self, where: str) -> None:
        for token in self.added_tokens:
            name = self._names.get(token.literal, token.literal)
            if self._tokenizer.token_to_id(name) != token.token_id:
                raise TextError(f"{where}: added token {token.literal!r} cannot have the id {token.token_id} it states")


def load_tokenizer(directory: str | Path) -> Tokenizer:
    """The tokenizer of a model directory; errors as in `read_tokenizer_files`."""
    return tokenizer_from_files(read_tokenizer_files(directory))


def tokenizer_from_files(files: TokenizerFiles) -> Tokenizer:
    """The tokenizer that the files describe. Raises TextError if they contradict each other."""
    return Tokenizer(
        files.tokenizer_json, files.tokenizer_config, files.end_of_text_ids, files.chat_template, where=files.where
    )


def read_tokenizer_files(directory: str | Path) -> TokenizerFiles:
    """What a model directory says of its tokenizer: `tokenizer.json`; and if they are there `tokenizer_config.json`,
    `generation_config.json` (end-of-text ids) and `chat_template.jinja`.

    Raises TextError with the path of a file that is missing or not readable as what it should be.
    """
    directory = Path(directory)
    config = _read_json(directory / "tokenizer_config.json", required=False)
    eos = _read_json(directory / "generation_config.json", required=False).get("eos_token_id")
    eos = [] if eos is None else eos if isinstance(eos, list) else [eos]
    if not all(isinstance(token_id, int) for token_id in eos):
        raise TextError(f"{directory / 'generation_config.json'}: eos_token_id must be a token id or a list of them")
    path = directory / "tokenizer.json"
    return TokenizerFiles(
        _read_json(path, required=True),
        config,
        end_of_text_ids=tuple(eos),
        chat_template=_chat_template(directory / "chat_template.jinja", config),
        where=str(path),
    )


def decode_utf8(data: bytes, what: str) -> str:
    """`data` as text; `what` names it (`standard input`). Raises RequestError with the offset of the first bad byte."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise RequestError(f"{what} is not valid UTF-8: {byte}") from error


def _read_text(path: Path, required: bool) -> str | None:
    try:
        return decode_utf8(path.read_bytes(), str(path))
    except FileNotFoundError:
        if required:
            raise TextError(f"{path} is missing") from None
        return None
    except OSError as error:
        raise TextError(f"{path} cannot be read: {error.strerror}") from error
    except RequestError as error:
        raise TextError(str(error)) from error


def _read_json(path: Path, required: bool) -> dict[str, Any]:
    text = _read_text(path, required)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise TextError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise TextError(f"{path} holds {type(value).__name__}, not an object")
    return value


def _chat_template(path: Path, config: Mapping[str, Any]) -> str | None:
    """The template's own file wins; a list of named templates in the config gives its `default`."""
    text = _read_text(path, required=False)
    if text is not None:
        return text
    field = config.get("chat_template")
    if isinstance(field, list):
        named = {entry.get("name"): entry.get("template") for entry in field if isinstance(entry, dict)}
        field = named.get("default")
    return field if isinstance(field, str) else None


def _token_text(field: Any) -> str | None:
    """The literal of a special token, given as a string or as an object with `content`."""
    text = field.get("content") if isinstance(field, dict) else field
    return text if isinstance(text, str) else None


def _added_tokens(tokenizer_json: Mapping[str, Any], template: str) -> tuple[AddedToken, ...]:
    """Control tokens are the special ones, those that the template names, and those that look like one."""
    found = []
    for entry in tokenizer_json.get("added_tokens") or ():
        literal, special = entry["content"], bool(entry.get("special"))
        control = special or literal in template or _CONTROL_LOOK.fullmatch(literal) is not None
        # A mark stands behind a first character, so it cannot break up a token of one character.
        found.append(AddedToken(entry["id"], literal, special, control and len(literal) > 1))
    return tuple(found)


def _literal_pattern(tokenizer_json: Mapping[str, Any], names: Mapping[str, str]) -> re.Pattern[str]:
    """Finds control literals as the library finds added tokens: leftmost, then longest, `single_word` by itself."""
    entries = [entry for entry in tokenizer_json.get("added_tokens") or () if entry["content"] in names]
    patterns = []
    for entry in sorted(entries, key=lambda entry: -len(entry["content"])):
        literal = re.escape(entry["content"])
        patterns.append(rf"(?<!\w){literal}(?!\w)" if entry.get("single_word") else literal)
    return re.compile("|".join(patterns))


def _renamed(tokenizer_json: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The tokenizer's description with control tokens under their random names, in every place that names them."""
    model = dict(tokenizer_json.get("model") or {})
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(text, text): token_id for text, token_id in vocabulary.items()}
    elif isinstance(vocabulary, list):  # Unigram: pairs of text and score
        model["vocab"] = [[names.get(text, text), score] for text, score in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    added = [
        dict(entry, content=names.get(entry["content"], entry["content"]))
        for entry in tokenizer_json.get("added_tokens") or ()
    ]
    # Truncation and padding of a training setup: nothing is ever cut silently here.
    return dict(tokenizer_json, model=model, added_tokens=added, truncation=None, padding=None)


def _random_name() -> str:
    """128 bits between characters that no normalizer changes and no text holds."""
    return f"\U0010fffd{secrets.token_hex(16)}\U0010fffd"


def _build(tokenizer_json: Mapping[str, Any]) -> tokenizers.Tokenizer:
    model = tokenizer_json["model"]
    try:
        if model.get("type") == "BPE" and isinstance(model.get("vocab"), dict):
            return _build_bpe(tokenizer_json, model)
        return tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json, ensure_ascii=False))
    except Exception as error:  # the library raises bare Exception
        raise ValueError(error) from error


_BPE_OPTIONS = (
    "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback",
    "ignore_merges",
)  # fmt: skip


def _build_bpe(tokenizer_json: Mapping[str, Any], model: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """The same tokenizer without its vocabulary going through JSON: 152,000 tokens take 0.5 s instead of 1.2."""
    shell = dict(tokenizer_json, model={"type": "BPE", "vocab": {}, "merges": []}, added_tokens=[])
    built = tokenizers.Tokenizer.from_str(json.dumps(shell, ensure_ascii=False))
    merges = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model.get("merges") or ()]
    unusable = next((merge for merge in merges if len(merge) != 2), None)
    if unusable is not None:
        raise ValueError(f"the merge {' '.join(unusable)[:60]!r} is not of two tokens")
    options = {name: model[name] for name in _BPE_OPTIONS if model.get(name) is not None}
    built.model = tokenizers.models.BPE(model["vocab"], merges, **options)
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    # By id: those that the vocabulary does not have are numbered as they come.
    for entry in sorted(tokenizer_json["added_tokens"], key=lambda entry: entry["id"]):
        token = tokenizers.AddedToken(entry["content"], **{flag: entry[flag] for flag in flags if flag in entry})
        (built.add_special_tokens if token.special else built.add_tokens)([token])
    return built
