"""Llama's calls stand in front of everything or behind their marker; other JSON is an answer."""

from tests.text.reply_tools import LLAMA, SAIL_LLAMA, Seen, read, whole


def test_an_object_in_front_of_everything_is_llamas_call_if_it_can_be() -> None:
    call, sail = SAIL_LLAMA.removeprefix("<|python_tag|>"), whole("sail", port="Kiel")
    for text in (call, f" \n{call}\n", SAIL_LLAMA):
        assert read(text, LLAMA) == Seen(calls=[sail]), text
    assert read(f"{call}; {call}", LLAMA) == read(f"{call}\n{SAIL_LLAMA}", LLAMA) == Seen(calls=[sail, sail])
    assert read(f"Off. {SAIL_LLAMA}", LLAMA) == Seen(content="Off.", calls=[sail])
    assert read(f"{call} it is", LLAMA) == Seen(content=" it is", calls=[sail])
    for text in (
        "{}",
        '{"name": "sink", "parameters": {}}',
        '{"name": "sail", "wind": 3}',
        f"Off. {call}",
        '{"a": 1} {',
    ):
        assert read(text, LLAMA) == Seen(content=text), text
