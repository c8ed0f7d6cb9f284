"""The worker by itself: marks where a user's openers are, limits, and nothing of the machine within reach."""

import json
import subprocess
import sys
from typing import Any

import pytest

from strata.text import template_worker
from strata.text.template_worker import TooMuchOutput, compile_template, render

MARK = "\ufdd0"


def rendered(source: str, mark: str = MARK, limit: int = 1000, **variables: Any) -> str:
    request = {"variables": variables, "trusted": {"eos": "<e>"}, "mark": mark, "now": "2026-01-02T03:04:05"}
    return render(compile_template(source, ["<tool>", "[x]"]), request, limit)


def test_marks_stand_behind_openers_of_the_users_strings_and_keys_only() -> None:
    source = "<t>{{ eos }}{{ '<c>' + a }}{% for k, v in b.items() %}{{ k }}{{ v[0] }}{% endfor %}"
    text = rendered(source, a="<x[", b={"<k": ["y<<"]})
    assert text == f"<t><e><c><{MARK}x[{MARK}<{MARK}ky<{MARK}<{MARK}"
    assert rendered(source, mark="", a="<x[", b={"<k": ["y<<"]}) == "<t><e><c><x[<ky<<"


def test_marking_again_changes_nothing() -> None:
    environment: Any = compile_template("", ["<tool>"]).environment
    environment.mark = MARK
    once = environment.marked({"a<": ["<<b", 5, None]})
    assert environment.marked(once) == once == {f"a<{MARK}": [f"<{MARK}<{MARK}b", 5, None]}
    assert environment.plain(once[f"a<{MARK}"]) == ["<<b", 5, None]


def test_a_string_that_goes_on_from_a_templates_opener_is_marked_and_a_role_is_not() -> None:
    source = "{% for k in a %}<{{ k }}>{% endfor %}<{{ m.role }}>"
    text = rendered(source, a=["tool", "to", "tool>y", "tools", "x", "l"], m={"role": "tool"})
    assert text == f"<t{MARK}ool><t{MARK}o><t{MARK}ool>y><tools><x{MARK}><l{MARK}><tool>"


def test_output_is_counted_while_it_is_written() -> None:
    assert rendered("{{ a }}" * 10, limit=10, a="<") == f"<{MARK}" * 10
    with pytest.raises(TooMuchOutput):
        rendered("{% for i in range(99999) %}xx{% endfor %}", limit=10)


def run_worker(*lines: dict[str, Any]) -> list[dict[str, Any]]:
    """The worker as its parent starts it, fed with these lines and then the end of its input."""
    path = [place for place in sys.path if place]
    start = (
        f"import runpy, sys; sys.path += {path!r}; runpy.run_path({template_worker.__file__!r}, run_name='__main__')"
    )
    given = "".join(json.dumps(line) + "\n" for line in lines)
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", start], input=given, capture_output=True, text=True, timeout=60, check=True
    )
    return [json.loads(line) for line in ran.stdout.splitlines()]


def settings(source: str) -> dict[str, Any]:
    return {"source": source, "literals": ["<tool>"], "seconds": 5, "output_characters": 100, "memory_bytes": 512 << 20}


def test_the_worker_answers_line_by_line_and_ends_with_its_input() -> None:
    request = {"variables": {"a": "<b"}, "trusted": {}, "mark": MARK, "now": "2026-01-02T03:04:05"}
    answers = run_worker(settings("{{ a }} {{ strftime_now('%H:%M') }}"), request, request)
    assert answers == [{"text": "started"}, {"text": ""}, *[{"text": f"<{MARK}b 03:04"}] * 2]
    assert run_worker(settings("{% if %}"))[1]["kind"] == "syntax"


@pytest.mark.skipif(template_worker.resource is None, reason="this system has no process limits")
@pytest.mark.parametrize(
    "attempt",
    ["open('/dev/null')", "__import__('socket').socket()", "bytearray(1 << 30)"],
    ids=["file", "socket", "memory"],
)
def test_a_limited_process_reaches_nothing(attempt: str) -> None:
    code = (
        "import socket, sys; from strata.text import template_worker as worker; worker._limit_process(256 << 20)\n"
        f"try: {attempt}\nexcept (OSError, MemoryError): sys.exit(7)"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 7
