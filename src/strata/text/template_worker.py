"""Renders one untrusted chat template in a process of its own: a jinja2 sandbox under the kernel's limits.

Knows jinja2 and lines of JSON; no part of Strata (it starts alone, by its path, so that a start costs no other import).

Marks: a mark is one character that occurs nowhere else in the request. It stands behind every opening character of a
control token (such as `<`) in a user's string, and behind the first character of a string that could go on from where
a template began one (a key `tool_call` where it writes `<{{ key }}>`); a message's role is the template's business.
So a control token that stands unmarked in what the template writes is the template's own, however it cuts and joins.
Templates must not notice: comparisons, searches, cuts, slices, lengths and JSON see the text without marks
(`_Environment`). What still counts a mark as a character: filters that format to a width (`center`, `truncate`,
`wordwrap`, `%5s`), `title`, and iterating a string's characters.
"""

import codecs
import datetime
import functools
import json
import pprint  # noqa: F401 - see below
import re
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jinja2
import jinja2.constants
import jinja2.debug
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.visitor
from jinja2.sandbox import ImmutableSandboxedEnvironment

try:
    import resource
except ImportError:  # not a Unix system: the parent's clock and the output limit still hold
    resource = None  # type: ignore[assignment]

# Python and jinja2 load these at their first use, when no file can be opened any more: so pprint, jinja2.constants and
# jinja2.debug are imported above, and the codec in which jinja2 reads its string constants is looked up here.
codecs.lookup("unicode-escape")

TEMPLATE_NAME = "<chat template>"
# Methods of str whose answer is a bool or a number: asked of the text without marks, on both sides.
_ASKING_METHODS = frozenset(("startswith", "endswith", "find", "rfind", "index", "rindex", "count"))
# Methods that return parts of the string: the parts keep their marks, so what is searched for is marked as well.
_CUTTING_METHODS = frozenset(
    ("split", "rsplit", "partition", "rpartition", "strip", "lstrip", "rstrip", "removeprefix", "removesuffix")
) | {"replace"}
_ROLES = frozenset(
    ("system", "developer", "user", "assistant", "model", "tool", "function", "ipython", "observation", "environment")
)
_REWRITTEN_COMPARISONS = frozenset(("eq", "ne", "in", "notin"))


class TooMuchOutput(Exception):
    """The template wrote more than its limit."""


class Refused(Exception):
    """The template called `raise_exception`."""


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks text for training; here its body is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Rewriter(jinja2.visitor.NodeTransformer):
    """Puts mark-blind filters around comparisons and slices, which jinja2 compiles to Python's own."""

    def visit_Compare(self, node: jinja2.nodes.Compare) -> jinja2.nodes.Node:
        self.generic_visit(node)
        if all(operand.op in _REWRITTEN_COMPARISONS for operand in node.ops):
            node.expr = _filter(node.expr, "__plain")
            for operand in node.ops:
                operand.expr = _filter(operand.expr, "__plain")
        return node

    def visit_Getitem(self, node: jinja2.nodes.Getitem) -> jinja2.nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, jinja2.nodes.Slice):
            return node
        none = jinja2.nodes.Const(None, lineno=node.lineno)
        bounds = [bound or none for bound in (node.arg.start, node.arg.stop, node.arg.step)]
        return _filter(node.node, "__slice", bounds)


def _filter(node: jinja2.nodes.Expr, name: str, arguments: list[jinja2.nodes.Expr] | None = None) -> jinja2.nodes.Expr:
    return jinja2.nodes.Filter(node, name, arguments or [], [], None, None, lineno=node.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox with the functions that published chat templates expect, blind to marks."""

    def __init__(self, literals: list[str]) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols], cache_size=0
        )
        self.mark = ""  # "" while no string of the request has one
        self.openers = "".join(sorted({literal[0] for literal in literals}))
        self.tails = {literal[i:] for literal in literals for i in range(1, len(literal) - 1)}
        self.tail_lengths = sorted({len(tail) for tail in self.tails})
        self.middles = {tail[:n] for tail in self.tails for n in range(1, len(tail))}
        self.now = datetime.datetime.min
        replace, length = self.filters["replace"], self.filters["length"]

        @jinja2.pass_eval_context
        def mark_blind_replace(context: Any, text: Any, *args: Any, **kwargs: Any) -> Any:
            return self.cut(text, functools.partial(replace, context), *args, **kwargs)

        def mark_blind_length(value: Any) -> int:
            return int(length(self.plain(value) if isinstance(value, str) else value))

        self.filters.update(
            {"__plain": self.plain, "__slice": self.slice, "tojson": self.to_json, "replace": mark_blind_replace}
        )
        self.filters.update(dict.fromkeys(("length", "count"), mark_blind_length))
        for name in ("eq", "equalto", "==", "ne", "!=", "in"):
            self.tests[name] = self._mark_blind_test(self.tests[name])
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = lambda format: self.now.strftime(format)

    def marked(self, value: Any) -> Any:
        """`value` as a user's: its strings with their marks, keys included. Marks that are there stay single."""
        if isinstance(value, str):
            return self._marked_text(self.plain(value)) if self.mark else value
        if isinstance(value, dict):
            return {
                self.marked(key): item if key == "role" and item in _ROLES else self.marked(item)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.marked, value))
        return value

    def _marked_text(self, text: str) -> str:
        marked = self._with_opener_marks(text)
        goes_on = text in self.middles or any(text[:length] in self.tails for length in self.tail_lengths)
        return text[0] + self.mark + marked[1:] if goes_on and text[0] not in self.openers else marked

    def _with_opener_marks(self, text: str) -> str:
        for opener in self.openers:
            text = text.replace(opener, opener + self.mark)
        return text

    def plain(self, value: Any) -> Any:
        """`value` without marks; of containers only their own strings and keys, which is what `in` looks at."""
        if not self.mark:
            return value
        if isinstance(value, str):
            return value.replace(self.mark, "")
        if isinstance(value, dict):
            return {self.plain(key): item for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self.plain(item) if isinstance(item, str) else item for item in value)
        return value

    def cut(self, text: Any, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`method(text, *args)` that searches text for its first argument (or `sep`) and returns its parts."""
        if not (self.mark and isinstance(text, str) and self.mark in text):
            return method(text, *map(self.plain, args[:1]), *args[1:], **kwargs)
        if re.search(f"[^{re.escape(self.openers)}]{self.mark}", text):
            # A short string with a mark in front of what is searched, perhaps: cut without marks, then mark the parts.
            return self.marked(method(self.plain(text), *map(self.plain, args), **kwargs))
        wanted = {"sep": self._wanted(kwargs["sep"])} if "sep" in kwargs else {}
        return method(text, *map(self._wanted, args[:1]), *args[1:], **(kwargs | wanted))

    def _wanted(self, value: Any) -> Any:
        return self._with_opener_marks(self.plain(value)) if isinstance(value, str) else value

    def slice(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        """`value[start:stop:step]`; an opener and its mark count as one character."""
        if self.mark and isinstance(value, str) and self.mark in value:
            return "".join(re.findall(f".{self.mark}?", value, re.DOTALL)[start:stop:step])
        return value[start:stop:step]

    def getitem(self, obj: Any, argument: Any) -> Any:
        if self.mark and isinstance(obj, str) and isinstance(argument, int) and self.mark in obj:
            characters = re.findall(f".{self.mark}?", obj, re.DOTALL)
            return super().getitem(characters, argument)
        return super().getitem(obj, argument)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        receiver, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if __self.mark and isinstance(receiver, str):
            if name in _ASKING_METHODS:
                __obj = getattr(__self.plain(receiver), name)
                args = tuple(map(__self.plain, args))
            elif name in _CUTTING_METHODS:
                __obj = functools.partial(__self.cut, receiver, getattr(str, name))
        return super().call(__context, __obj, *args, **kwargs)

    def to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as chat templates expect it: without HTML escapes, non-ASCII as it is unless asked otherwise."""
        text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
        if not ensure_ascii:
            return text
        # Escape character by character, all but the mark.
        return "".join(c if c < "\x7f" or c == self.mark else json.dumps(c)[1:-1] for c in text)

    def _mark_blind_test(self, test: Any) -> Callable[[Any, Any], Any]:
        return lambda value, other: test(self.plain(value), self.plain(other))


def _refuse(message: object = "") -> None:
    raise Refused(str(message))


def compile_template(source: str, literals: list[str]) -> jinja2.Template:
    """The template, ready to render; `literals` are the control tokens. Raises jinja2.TemplateSyntaxError."""
    environment = _Environment(literals)
    tree = _Rewriter().visit(environment.parse(source, TEMPLATE_NAME, TEMPLATE_NAME))
    code = environment.compile(tree, TEMPLATE_NAME, TEMPLATE_NAME)
    return environment.template_class.from_code(environment, code, environment.make_globals(None))


def render(template: jinja2.Template, request: dict[str, Any], output_characters: int) -> str:
    """What the template writes, with marks."""
    environment = template.environment
    assert isinstance(environment, _Environment)
    environment.mark = request["mark"]
    environment.now = datetime.datetime.fromisoformat(request["now"])
    variables = environment.marked(request["variables"])
    if variables == request["variables"]:
        environment.mark = ""
    variables |= request["trusted"]
    parts, room = [], output_characters
    for part in template.generate(variables):
        room -= len(environment.plain(part))
        if room < 0:
            raise TooMuchOutput
        parts.append(part)
    return "".join(parts)


def _answer_to(work: Callable[[], str], mark: str = "") -> dict[str, Any]:
    """The answer to one request: its text, or what failed, of which kind and in which line."""
    try:
        return {"text": work()}
    except TooMuchOutput:
        return {"kind": "output", "error": "", "line": None}
    except MemoryError:
        return {"kind": "memory", "error": "", "line": None}
    except Refused as error:
        return {"kind": "refused", "error": str(error).replace(mark, ""), "line": None}
    except jinja2.TemplateSyntaxError as error:
        return {"kind": "syntax", "error": error.message, "line": error.lineno}
    except Exception as error:  # whatever an untrusted template does is its own error, never a crash
        text = f"{error}" if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: {error}"
        return {"kind": "failed", "error": text.replace(mark, "")[:1000], "line": _line_of(error)}


def _line_of(error: Exception) -> int | None:
    line, step = None, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == TEMPLATE_NAME:
            line = step.tb_lineno
        step = step.tb_next
    return line


def _limit_process(memory_bytes: int) -> None:
    """From here on: bounded memory, no further file or socket, no child, no core file."""
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        for limit, value in (
            (resource.RLIMIT_NOFILE, 3),
            (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_NPROC, 0),
        ):
            resource.setrlimit(limit, (value, value))


def _set_alarm(seconds: float) -> None:
    """The kernel ends this process after `seconds` (0 = never), so that it cannot outlive a parent that was killed."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _requests() -> Iterator[dict[str, Any]]:
    for line in sys.stdin.buffer:
        yield json.loads(line)


def _send(answer: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Serve one parent: a line of settings, answered by "started" and by the compiler; then a line for each render."""
    requests = _requests()
    settings = next(requests)
    _limit_process(settings["memory_bytes"])
    _send({"text": "started"})
    template: list[jinja2.Template] = []

    def prepare() -> str:
        template.append(compile_template(settings["source"], settings["literals"]))
        return ""

    _set_alarm(2 * settings["seconds"])
    _send(_answer_to(prepare))
    _set_alarm(0)
    for request in requests:
        _set_alarm(2 * settings["seconds"])
        work = functools.partial(render, template[0], request, settings["output_characters"])
        _send(_answer_to(work, request["mark"]))
        _set_alarm(0)


if __name__ == "__main__":
    main()
