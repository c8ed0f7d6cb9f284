"""Twenty prompts of several kinds for a small instruct model: messages, or text to continue. Data only."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Prompt:
    """Messages as (role, content) pairs, or a raw text."""

    name: str
    messages: tuple[tuple[str, str], ...] = ()
    text: str = ""


def _ask(name: str, question: str) -> Prompt:
    return Prompt(name, messages=(("user", question),))


PROMPTS = (
    _ask("instruction list", "List three fruits that are red."),
    _ask("instruction rewrite", "Rewrite this politely: Give me the report now."),
    _ask("instruction translate", "Translate to French: Good morning, my friend."),
    _ask("instruction count", "How many days are there in a leap year?"),
    _ask("instruction summary", "Summarize in one sentence: The harbour froze early, and ships waited until April."),
    _ask("code python", "Write a Python function that returns the sum of the squares of a list."),
    _ask("code shell", "Which shell command lists all files, hidden ones too, sorted by time?"),
    Prompt("code continuation", text="def fibonacci(n):\n    if n < 2:\n        return n\n"),
    Prompt("code c", text="#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++) {\n"),
    Prompt("code json", text='{"name": "Ada", "born": 1815, "died": 1852, "known_for": ['),
    Prompt(
        "chat turns",
        messages=(
            ("user", "My name is Miriam."),
            ("assistant", "Nice to meet you, Miriam! How can I help?"),
            ("user", "What is my name?"),
        ),
    ),
    Prompt(
        "chat system",
        messages=(("system", "You are a pirate. Answer in one short sentence."), ("user", "Where do you sail?")),
    ),
    Prompt("chat empty system", messages=(("system", ""), ("user", "Say hello."))),
    Prompt("raw story", text="Once upon a time, in a village by the sea,"),
    Prompt("raw facts", text="The capital of Japan is"),
    Prompt("raw list", text="1. Monday\n2. Tuesday\n3."),
    Prompt("raw spaces", text="Name:   Value\n\n\tfirst:   1\n\tsecond:"),
    _ask("unicode accents", "Où se trouve l'église Saint-Étienne à Würzburg? Ist das naïve Frage?"),
    _ask("unicode scripts", "What do these words mean: 你好, Привет, مرحبا, नमस्ते?"),
    _ask("unicode emoji", "Explain these: 🚀🔥 — “quotes”, … and 1⁄2 ≤ ¾"),
)
