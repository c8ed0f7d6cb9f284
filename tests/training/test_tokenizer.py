"""Knows what must hold for the shipped tokenizer, its chat template and the pieces of dictionary chats.
Does not know the model. Reads the files in models_shipped/pocket, needs no training data.
"""

import itertools
import json
import random
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer, pre_tokenizers

from training.dictionary import Entry
from training.prepare import dictionary_pieces, flat, verify_pieces
from training.tokenizer import CONTROL_TOKENS, MARK_TOKENS, VOCABULARY_SIZE, chat_text, train_tokenizer

POCKET = Path(__file__).parents[2] / "src/strata/models_shipped/pocket"
ENTRIES = [
    Entry("harbour", 0, "a sheltered port where ships can take on or discharge cargo"),
    Entry("well-being", 0, "a contented state; (informal) 3 'good' things"),
    Entry("though", 3, "(postpositive) however"),
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(POCKET / "tokenizer.json"))


def _render(**values: object) -> str:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string((POCKET / "chat_template.jinja").read_text()).render(**values)


def test_text_comes_back_as_it_went_in(tokenizer: Tokenizer) -> None:
    generator = random.Random(1)
    letters = "".join(chr(code) for code in range(0x2FFF)) + "😀👩‍👩‍👧‍👦é́ﬀ\r\n\t  \ufffd" * 50
    samples = ["", " ", "\n\n\n", "e\u0301", *("".join(generator.choices(letters, k=60)) for _ in range(200))]
    for text in samples:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_every_byte_has_an_id_so_that_invalid_utf8_has_ids_too(tokenizer: Tokenizer) -> None:
    ids = [tokenizer.token_to_id(letter) for letter in pre_tokenizers.ByteLevel.alphabet()]
    assert len(set(ids)) == 256 and None not in ids
    broken = "é".encode()[:1]  # half a character alone decodes to the replacement character, and to nothing else
    assert tokenizer.decode([tokenizer.encode("é").ids[0]]) in {"é", broken.decode("utf-8", "replace")}


def test_special_ids_stand_first_and_marks_are_ordinary_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == VOCABULARY_SIZE == max(tokenizer.get_vocab().values()) + 1
    assert [tokenizer.id_to_token(number) for number in range(9)] == [*CONTROL_TOKENS, *MARK_TOKENS]
    added = json.loads((POCKET / "tokenizer.json").read_text())["added_tokens"]
    assert [token["special"] for token in added] == [True] * 3 + [False] * 6
    assert tokenizer.decode(tokenizer.encode("<think>x</think><|im_end|>").ids) == "<think>x</think>"


def test_chat_text_is_what_the_template_renders() -> None:
    turns = [{"role": "user", "content": "What does harbour mean?"}]
    answered = [*turns, {"role": "assistant", "content": "a port"}]
    assert _render(messages=answered) == chat_text("What does harbour mean?", "a port")
    opened = _render(messages=turns, add_generation_prompt=True)
    assert opened == "<|im_start|>user\nWhat does harbour mean?<|im_end|>\n<|im_start|>assistant\n"


def test_template_renders_system_tools_calls_and_results() -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": {"word": "sea"}}}
    text = _render(
        tools=[{"type": "function", "function": {"name": "look"}}],
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Look it up"}]},
            {"role": "assistant", "content": None, "tool_calls": [call, call]},
            {"role": "tool", "content": "one"},
            {"role": "tool", "content": "two"},
        ],
        add_generation_prompt=True,
    )
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n\n") and text.count("<|im_start|>system") == 1
    one_call = '<tool_call>\n{"name": "look", "arguments": {"word": "sea"}}\n</tool_call>'
    assert f"<|im_start|>assistant\n{one_call}\n{one_call}<|im_end|>\n" in text
    results = "\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response><|im_end|>\n"
    assert text.endswith(f"<|im_start|>user{results}<|im_start|>assistant\n")


def test_pieces_put_together_equal_the_encoded_chat(tokenizer: Tokenizer) -> None:
    pieces = dictionary_pieces(tokenizer, ENTRIES)
    assert verify_pieces(tokenizer, ENTRIES, pieces) > 20
    ids, answer_start = pieces.chat(word=0, part_of_speech=0, template=0)
    assert tokenizer.decode(ids[answer_start:]) == ENTRIES[0].answer + "\n"


def test_flat_lists_can_be_cut_apart_again() -> None:
    ids, offsets = flat([[1, 2], [], [3]])
    assert [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)] == [[1, 2], [], [3]]


def test_training_twice_gives_the_same_vocabulary() -> None:
    documents = [f"the harbour number {number} is a sheltered port\n" for number in range(50)]
    chats = [("What does harbour mean?", "a port")]
    assert train_tokenizer(documents, chats).to_str() == train_tokenizer(documents, chats).to_str()
