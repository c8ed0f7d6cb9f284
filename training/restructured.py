"""Knows how a page of reStructuredText, as Sphinx documentation writes it, becomes plain blocks of text.
Does not know any other source format (`cleaning.py`), where pages come from, or which of them are wanted.
"""

import re
from collections.abc import Callable

from training.cleaning import code_block, one_line

_SIGNATURES = re.compile(
    r"function|\w*method|class|data|attribute|exception|decorator|describe|cmdoption|option|envvar|opcode|pdbcommand"
    r"|object|member|macro|type|var|struct|coroutinefunction|awaitablefunction|property|enum|enumerator|union|2to3fixer"
)
_LABELS = {
    "note": "Note:", "warning": "Warning:", "seealso": "See also:", "versionadded": "New in version",
    "versionchanged": "Changed in version", "deprecated": "Deprecated since version", "tip": "Tip:",
    "deprecated-removed": "Deprecated since version", "impl-detail": "CPython implementation detail:",
    "availability": "Availability:", "important": "Important:", "caution": "Caution:", "admonition": "Note:",
    "hint": "Hint:", "attention": "Attention:", "rubric": "", "topic": "", "centered": "", "epigraph": "",
}  # fmt: skip
_CODE = frozenset({"code-block", "sourcecode", "code", "productionlist", "parsed-literal", "doctest", "testcode"})
_TRANSPARENT = frozenset({"list-table", "hlist", "glossary", "container", "table", "compound", "only", "nested"})
_MARK = re.compile(r"([*+-]|#\.|\d+\.|\(?[a-z0-9]\)|[a-z]\.)\s+(?=\S)")
_DIRECTIVE = re.compile(r"\.\. ([\w:+.-]+)::\s*(.*)")
_FOOTNOTE = re.compile(r"\.\. \[[^\]]+\]\s+(.*)")
_RULE = re.compile(r"([=\-~^\"'*+#.:_`])\1{2,}$")
_SIMPLE_TABLE = re.compile(r"=+( +=+)+$")
_BARE_VERSION = re.compile(r"(New|Changed|Deprecated) (in|since) version [\w.]+:")  # nothing follows: end it
_FIELD = re.compile(r":[\w -]+:(\s|$)")

_ROLE = re.compile(r":(?P<role>[\w:+-]+):`(?P<inner>[^`]*)`")
_WORD_ROLES = frozenset(
    {"ref", "term", "doc", "dfn", "abbr", "download", "sup", "sub", "program", "menuselection", "issue"}
)


def _role(match: re.Match[str]) -> str:
    role, inner = match["role"].rpartition(":")[2], match["inner"].lstrip("!")
    label, bracket, _ = inner.partition(" <")
    if bracket:
        inner = label
    elif inner.startswith("~"):
        inner = inner.rpartition(".")[2]
    if role in {"pep", "rfc"}:
        return inner if bracket else f"{role.upper()} {inner}"
    if role in _WORD_ROLES or bracket:
        return inner
    return f"`{inner}()`" if role in {"func", "meth"} and not inner.endswith(")") else f"`{inner}`"


def inline(text: str) -> str:
    """Roles, links and emphasis resolved: :func:`len` -> `len()`, ``x`` -> `x`, *x* -> x."""
    text = _ROLE.sub(_role, text)
    text = re.sub(r"``(.+?)``", r"`\1`", text)
    text = re.sub(r"`([^`<]+?)\s*<[^`>]+>`__?", r"\1", text)
    text = re.sub(r"`([^`]+)`__?(?!\w)", r"\1", text)
    text = re.sub(r"\*\*(\S(?:.*?\S)?)\*\*", r"\1", text)
    text = re.sub(r"(?<![\w*`])\*(\S(?:[^*`]*?\S)?)\*(?![\w*`])", r"\1", text)
    text = re.sub(r"\[#?[\w]*\]_", "", text)
    return one_line(text.replace("\\ ", "").replace("\\*", "*"))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


class _Reader:
    """A cursor over the lines of one page; every `_read_*` consumes what it reads and adds its blocks."""

    def __init__(self, source: str) -> None:
        self.lines = source.expandtabs(8).split("\n")
        self.at = 0
        self.blocks: list[str] = []
        self.heading_marks: list[str] = []

    def read(self) -> list[str]:
        while self.at < len(self.lines):
            line = self.lines[self.at]
            stripped = line.strip()
            if not stripped:
                self.at += 1
            elif stripped.startswith("..") and (len(stripped) == 2 or stripped[2] == " "):
                self._read_explicit(line)
            elif self._at_heading():
                self._read_heading()
            elif _SIMPLE_TABLE.match(stripped):
                self._read_simple_table()
            elif stripped.startswith("+--"):
                self._take_while(lambda text: text.strip().startswith(("+", "|")))
            elif _RULE.match(stripped) or (_FIELD.match(stripped) and not stripped.startswith(":ref")):
                self.at += 1
            elif stripped.startswith(">>> "):
                self._add_code(self._take_while(lambda text: bool(text.strip())))
            else:
                self._read_paragraph()
        return self.blocks

    def _take_while(self, wanted: Callable[[str], bool]) -> list[str]:
        start = self.at
        while self.at < len(self.lines) and wanted(self.lines[self.at]):
            self.at += 1
        return self.lines[start : self.at]

    def _take_body(self, indent: int) -> list[str]:
        return self._take_while(lambda text: not text.strip() or _indent(text) > indent)

    def _add_code(self, lines: list[str]) -> None:
        if block := code_block(lines):
            self.blocks.append(block)

    def _at_heading(self) -> bool:
        here = self.lines[self.at]
        below = self.lines[self.at + 1].rstrip() if self.at + 1 < len(self.lines) else ""
        if _indent(here):
            return False
        if _RULE.match(here.rstrip()) and below.strip():
            third = self.lines[self.at + 2].rstrip() if self.at + 2 < len(self.lines) else ""
            return third == here.rstrip()
        return bool(_RULE.match(below)) and len(below) >= min(4, len(here.strip()))

    def _read_heading(self) -> None:
        overlined = bool(_RULE.match(self.lines[self.at].rstrip()))
        mark = self.lines[self.at + 1][0] if not overlined else "over" + self.lines[self.at][0]
        title = self.lines[self.at + overlined]
        if mark not in self.heading_marks:
            self.heading_marks.append(mark)
        self.blocks.append("#" * (self.heading_marks.index(mark) + 1) + " " + inline(title))
        self.at += 3 if overlined else 2

    def _read_explicit(self, line: str) -> None:
        indent, stripped = _indent(line), line.strip()
        directive = _DIRECTIVE.match(stripped)
        name = directive[1].rpartition(":")[2] if directive else ""
        if directive and _SIGNATURES.fullmatch(name):
            self.at += 1
            more = self._take_while(lambda text: bool(text.strip()) and _indent(text) > indent)
            signatures = [directive[2], *(text.strip() for text in more if not _FIELD.match(text.strip()))]
            self.blocks.extend(f"`{one_line(signature)}`" for signature in signatures if signature.strip())
        elif directive and name in _LABELS:
            label, argument = _LABELS[name], directive[2].strip()
            joined = f"{label} {argument}".strip()
            if label.endswith("version") and not argument.count(" "):
                joined += ":"
            if joined:
                self.lines[self.at] = " " * indent + joined
                self._read_paragraph(hangs=True)
            else:
                self.at += 1
        elif directive and name in _CODE:
            self.at += 1
            self._add_code([text for text in self._take_body(indent) if not _FIELD.match(text.strip())])
        elif directive and name in _TRANSPARENT:
            self.at += 1
        elif footnote := _FOOTNOTE.match(stripped):
            self.lines[self.at] = " " * indent + footnote[1]
            self._read_paragraph(hangs=True)
        else:
            self.at += 1
            self._take_body(indent)

    def _read_simple_table(self) -> None:
        border = self.lines[self.at].rstrip()
        starts = [match.start() for match in re.finditer(r"=+", border)]
        rows: list[list[str]] = []
        borders = 0
        while self.at < len(self.lines):
            line = self.lines[self.at].rstrip()
            self.at += 1
            borders += line == border
            if line == border and borders > 1 and (self.at >= len(self.lines) or not self.lines[self.at].strip()):
                break
            if line == border or not line.strip() or set(line.strip()) <= {"-", " "}:
                continue
            cells = [line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]
            if cells[0] or not rows:
                rows.append(cells)
            else:
                rows[-1] = [f"{old} {new}".strip() for old, new in zip(rows[-1], cells, strict=True)]
        self.blocks.extend(inline(" | ".join(row)) for row in rows)

    def _read_paragraph(self, hangs: bool = False) -> None:
        """One paragraph or list item; `hangs`: its further lines are indented more than its first."""
        first = self.lines[self.at]
        mark = _MARK.match(first.strip())
        base = _indent(first)
        body_indent = base + len(mark[0]) if mark else base
        texts = [first.strip()]
        self.at += 1
        while self.at < len(self.lines) and self.lines[self.at].strip():
            line = self.lines[self.at]
            starts_other = _MARK.match(line.strip()) and _indent(line) <= body_indent and (mark or hangs)
            outside = _indent(line) <= base if (mark or hangs) else _indent(line) != base
            if starts_other or outside or line.strip().startswith((".. ", ">>> ")):
                break
            texts.append(line.strip())
            if hangs:
                body_indent = _indent(line)
            self.at += 1
        text = " ".join(texts)
        opens_code = text.endswith("::")
        text = inline(text[:-1] if opens_code else text)
        if hangs and len(texts) == 1 and _BARE_VERSION.fullmatch(text):
            text = text[:-1] + "."
        if mark:
            text = re.sub(r"^[*+-] (- )?", "* ", text)
        if text.strip(":* "):
            self.blocks.append(text)
        if opens_code:
            self._add_code(self._take_body(body_indent))


def restructured_text_blocks(source: str) -> list[str]:
    """The blocks of a reStructuredText page; indices, targets, comments, images and grid tables are dropped."""
    return _Reader(source).read()
