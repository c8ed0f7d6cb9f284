"""A model's tokens as a grammar sees them: their bytes, control tokens apart, as wide as the logits."""

from strata.models_shipped import default_path
from strata.sampling.grammar_compile import GrammarFactory
from strata.sampling.grammar_spec import GrammarKind, GrammarSpec
from strata.text.grammar_vocabulary import grammar_vocabulary
from strata.text.tokenizer import load_tokenizer


def test_tokens_spell_a_text_and_control_tokens_are_apart() -> None:
    tokenizer = load_tokenizer(default_path())
    width = tokenizer.vocabulary_size + 100
    vocabulary = grammar_vocabulary(tokenizer, tokenizer.eos_token_ids, width)
    text = 'harbour: {"é": "日本 🙂"}\n'
    assert b"".join(vocabulary.tokens[token_id] for token_id in tokenizer.encode(text)) == text.encode()
    assert vocabulary.special_ids == {token.token_id for token in tokenizer.added_tokens if token.control}
    assert vocabulary.end_ids == tokenizer.eos_token_ids and vocabulary.end_ids < vocabulary.special_ids
    assert len(vocabulary.tokens) == vocabulary.width == width
    assert set(vocabulary.tokens[tokenizer.vocabulary_size :]) == {b""}


def test_a_grammar_takes_what_the_tokenizer_makes_of_a_text() -> None:
    tokenizer = load_tokenizer(default_path())
    width = tokenizer.vocabulary_size + 100
    factory = GrammarFactory(lambda: grammar_vocabulary(tokenizer, tokenizer.eos_token_ids, width))
    grammar = factory.compile(GrammarSpec(GrammarKind.JSON_SCHEMA, '{"type": "object", "required": ["größe"]}'))
    for token_id in tokenizer.encode('{"größe": ["日本", 🙂, <|im_end|>"'.replace("🙂, ", '"🙂", "')):
        grammar.commit([token_id])
    assert not grammar.is_finished
    grammar.commit(tokenizer.encode("]}"))
    assert grammar.is_finished
