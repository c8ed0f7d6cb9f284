"""A model's tokens as a grammar sees them. Knows tokenizers; runs no grammar."""

from collections.abc import Collection

from strata.sampling.grammar_compile import Vocabulary
from strata.text.tokenizer import Tokenizer


def grammar_vocabulary(tokenizer: Tokenizer, end_of_text_ids: Collection[int], width: int) -> Vocabulary:
    """The tokens of a model whose logits are `width` wide.

    Control tokens are no text: what a grammar puts in quotes is spelled in ordinary tokens, and a grammar that means
    the token itself names it, `<[151657]>` in Lark.
    """
    return Vocabulary(
        tokens=[tokenizer.token_bytes(token_id) for token_id in range(width)],
        special_ids=frozenset(token.token_id for token in tokenizer.added_tokens if token.special or token.control),
        end_ids=frozenset(end_of_text_ids),
        width=width,
    )
