"""Whether a model's tokenizer and chat template work, said in words before anybody talks to the model.

Knows how to try them and what end-of-text ids must be; knows no terminal and no weight.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from strata.errors import StrataError
from strata.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TextFacts:
    """One line about each; `problems` are the sentences of what does not work."""

    tokenizer: str
    template: str
    problems: tuple[str, ...]


MISSING = TextFacts("missing", "missing", ())


def read_text_facts(load: Callable[[], Tokenizer], config_ends: Iterable[int], vocabulary_size: int) -> TextFacts:
    """Load a tokenizer and let its template render a message. `config_ends`: the end-of-text ids of the config."""
    try:
        tokenizer = load()
    except StrataError as failure:
        return TextFacts("does not load", "not tried", (str(failure),))
    size = f"loads, {tokenizer.vocabulary_size:,} tokens"
    ends = end_ids_problem({*tokenizer.eos_token_ids, *config_ends}, vocabulary_size)
    problems = () if ends is None else (ends,)
    if tokenizer.chat_template is None:
        return TextFacts(size, "missing: no chat, only text to continue", problems)
    try:
        prompt = tokenizer.encode_chat([{"role": "user", "content": "Hello"}])
    except StrataError as failure:
        return TextFacts(size, "does not work", (*problems, str(failure)))
    finally:
        tokenizer.chat_template.close()
    return TextFacts(size, f"works, a first message of one word is {len(prompt)} tokens", problems)


def end_ids_problem(token_ids: Iterable[int], vocabulary_size: int) -> str | None:
    """What to say of end-of-text ids that the model cannot say; None if there are none."""
    outside = sorted(token_id for token_id in token_ids if not 0 <= token_id < vocabulary_size)
    if not outside:
        return None
    names = ", ".join(f"{token_id:,}" for token_id in outside)
    return (
        f"eos_token_id names {names}, the vocabulary has {vocabulary_size:,} tokens: the model can never say it; ids "
        f"from 0 to {vocabulary_size - 1:,} in generation_config.json and config.json work"
    )
