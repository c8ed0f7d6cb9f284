"""Knows how a page of HTML, reStructuredText, POD or a manual page becomes plain blocks of text.
Does not know where pages come from, which of them are wanted, or what a token is.

A block is one paragraph on one line, one heading ("## Title"), one list item ("* item"), or one piece of code
(several lines, each indented by four spaces). Inline code stands in single backticks in every source format.
"""

import re
import textwrap
from html.parser import HTMLParser

CODE_INDENT = "    "


def code_block(lines: list[str]) -> str | None:
    """Code as one block: common indent removed, four spaces put before each line; None when nothing is left."""
    body = textwrap.dedent("\n".join(line.rstrip() for line in lines)).strip("\n")
    return textwrap.indent(body, CODE_INDENT) if body.strip() else None


def one_line(text: str) -> str:
    """`text` with every run of white space as one blank."""
    return " ".join(text.replace("\u200b", "").split())


# --- HTML -----------------------------------------------------------------------------------------------------

_SKIPPED_TAGS = frozenset({"script", "style", "svg", "head", "button", "form", "select"})
_SKIPPED_CLASSES = frozenset(
    {"nosearch", "navheader", "navfooter", "toc", "imgcontainer", "lot", "indexterm", "pikchr"}
)
_VOID_TAGS = frozenset({"br", "hr", "img", "input", "link", "meta", "col", "wbr"})
_BLOCK_TAGS = frozenset(
    {"p", "div", "li", "dt", "dd", "tr", "table", "ul", "ol", "dl", "blockquote", "pre", "section", "center"}
)
_HEADING = re.compile(r"h([1-6])")


class _PageReader(HTMLParser):
    """Collects the blocks of one page. Tolerates unclosed <p>, <li> and <td>, which sqlite's pages are full of."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[str] = []
        self._text: list[str] = []
        self._prefix = ""
        self._skipped: str | None = None
        self._skipped_depth = 0
        self._inline_code_depth = 0
        self._preformatted = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipped is not None:
            self._skipped_depth += tag == self._skipped
            return
        classes = set((dict(attrs).get("class") or "").split())
        if tag not in _VOID_TAGS and (tag in _SKIPPED_TAGS or classes & _SKIPPED_CLASSES):
            self._skipped, self._skipped_depth = tag, 1
        elif self._preformatted:
            if tag == "br":
                self._text.append("\n")
        elif heading := _HEADING.fullmatch(tag):
            self.end_block()
            self._prefix = "#" * int(heading[1]) + " "
        elif tag in _BLOCK_TAGS:
            self.end_block()
            self._preformatted = tag == "pre"
            if tag == "li":
                self._prefix = "* "
        elif tag in {"td", "th"} and "".join(self._text).strip():
            self._text.append(" | ")
        elif tag == "br":
            self._text.append(" ")
        elif tag in {"code", "tt"}:
            self._inline_code_depth += 1
            if self._inline_code_depth == 1:
                self._text.append("`")

    def handle_endtag(self, tag: str) -> None:
        if self._skipped is not None:
            self._skipped_depth -= tag == self._skipped
            if self._skipped_depth == 0:
                self._skipped = None
        elif tag == "pre" and self._preformatted:
            self._preformatted = False
            if block := code_block("".join(self._text).expandtabs(8).split("\n")):
                self.blocks.append(block)
            self._text, self._prefix = [], ""
        elif self._preformatted:
            return
        elif tag in {"code", "tt"} and self._inline_code_depth:
            self._inline_code_depth -= 1
            if self._inline_code_depth == 0:
                self._text.append("`")
        elif tag in _BLOCK_TAGS or _HEADING.fullmatch(tag):
            self.end_block()

    def handle_data(self, data: str) -> None:
        if self._skipped is None:
            self._text.append(data)

    def end_block(self) -> None:
        """Closes the paragraph being read; an empty one leaves no block and keeps its list mark for the next."""
        if self._inline_code_depth:
            self._text.append("`")
            self._inline_code_depth = 0
        text = one_line("".join(self._text).replace("``", ""))
        self._text = []
        if text:
            self.blocks.append(self._prefix + text)
            self._prefix = ""


def html_blocks(page: str) -> list[str]:
    """The readable blocks of an HTML page, without navigation, tables of contents, drawings and scripts."""
    reader = _PageReader()
    reader.feed(page)
    reader.close()
    reader.end_block()
    return reader.blocks


# --- POD ------------------------------------------------------------------------------------------------------

_POD_ENTITIES = {"lt": "<", "gt": ">", "verbar": "|", "sol": "/", "amp": "&", "quot": '"', "nbsp": " ", "mdash": "--"}
_POD_SIMPLE = re.compile(r"([A-Z])<([^<>]*)>")
_POD_WIDE = re.compile(r"([A-Z])(<<+)\s+(.*?)\s+>>+")


def _pod_code(letter: str, inner: str) -> str:
    if letter in "XZ":
        return ""
    if letter == "E":
        return _POD_ENTITIES.get(inner, chr(int(inner)) if inner.isdigit() else "")
    if letter == "L":
        label, _, target = inner.partition("|")
        section = label.rpartition("/")[2].strip('"') if not target and "://" not in label else label
        return section or label
    return f"`{inner}`" if letter in "CF" else inner


def pod_inline(text: str) -> str:
    """Formatting codes resolved from the inside out: C<x> -> `x`, L<text|page> -> text, X<entry> -> nothing."""
    held: list[str] = []

    def hold(value: str) -> str:
        held.append(value)
        return f"\x01{len(held) - 1}\x02"

    text = _POD_WIDE.sub(lambda match: hold(_pod_code(match[1], match[3])), text)
    before = ""
    while before != text:
        before = text
        text = _POD_SIMPLE.sub(lambda match: hold(_pod_code(match[1], match[2])), text)
    while "\x01" in text:
        text = re.sub("\x01(\\d+)\x02", lambda match: held[int(match[1])], text)
    return one_line(text.replace("``", "`"))


def pod_blocks(source: str) -> list[str]:
    """The blocks of a POD file: headings, paragraphs, items and indented code; =for, =begin ... =end are dropped."""
    blocks: list[str] = []
    code: list[str] = []
    inside_format = False
    for paragraph in [*re.split(r"\n[ \t]*\n", source.expandtabs(8)), "=cut"]:
        paragraph = paragraph.strip("\n")
        if paragraph.startswith(" ") and not inside_format:
            code += [*paragraph.split("\n"), ""]
            continue
        if code and (block := code_block(code)):
            blocks.append(block)
        code = []
        command, _, rest = paragraph.partition(" ") if paragraph.startswith("=") else ("", "", paragraph)
        if command in {"=begin", "=end"}:
            inside_format = command == "=begin"
        elif inside_format or command in {"=for", "=encoding", "=over", "=back", "=cut", "=pod"}:
            continue
        elif command.startswith("=head"):
            blocks.append("#" * int(command[5:6] or 1) + " " + pod_inline(rest))
        elif text := pod_inline(rest):
            blocks.append("* " + text.lstrip("* ") if command == "=item" and text.strip("* ") else text)
    return [block for block in blocks if block.strip("* #")]


# --- manual pages (as pod2man writes them) --------------------------------------------------------------------

_ROFF_NAMES = {
    'L"': '"', 'R"': '"', "Aq": "'", "C`": "", "C'": "", "--": "--", "PI": "pi", "bu": "*", "co": "(c)", "em": "--",
}  # fmt: skip
_ROFF_ESCAPE = re.compile(r"\\(?:s[+-]?\d+|f\(..|f.|[*(]\(?(?P<name>[^\s(]{2})|[&|^/,%:]|(?P<char>.))")
_ROFF_CODE_FONT = re.compile(r"\\f\(CW(.*?)\\f(?:R|P|\(..)")


def _roff_inline(text: str, marks_code: bool) -> str:
    """Escapes of one line resolved; with `marks_code` the typewriter font becomes backticks."""
    if marks_code:
        text = _ROFF_CODE_FONT.sub(lambda match: f"`{match[1]}`", text)

    def resolve(match: re.Match[str]) -> str:
        if match["name"] is not None:
            return _ROFF_NAMES.get(match["name"], "")
        return {"e": "\\", "-": "-", None: "", "~": " "}.get(match["char"], match["char"] or "")

    return _ROFF_ESCAPE.sub(resolve, text)


def manual_page_blocks(source: str) -> list[str]:
    """The blocks of a manual page written by pod2man; everything before the .TH line is set-up and is dropped."""
    blocks: list[str] = []
    text: list[str] = []
    code: list[str] | None = None
    mark = ""

    def end_block() -> None:
        nonlocal mark
        joined = one_line(" ".join(text))
        text.clear()
        if joined.strip("*"):
            blocks.append(mark + joined)
            mark = ""

    for line in source.partition("\n.TH ")[2].split("\n")[1:]:
        line = line.removeprefix(".el ")  # pod2man writes both forms of an item: .ie for terminals, .el for printers
        request, _, argument = line.partition(" ") if line.startswith(".") else ("", "", line)
        argument = argument if not request else argument.strip().strip('"')
        if code is not None:
            if request == ".Ve":
                if block := code_block(code):
                    blocks.append(block)
                code = None
            else:
                code.append(_roff_inline(line, marks_code=False))
        elif request == ".Vb":
            end_block()
            code = []
        elif request in {".SH", ".SS"}:
            end_block()
            blocks.append(("# " if request == ".SH" else "## ") + one_line(_roff_inline(argument, marks_code=False)))
        elif request == ".IP":
            end_block()
            term = re.sub(r'"\s*-?\d*$', "", argument)
            text.append(_roff_inline(term, marks_code=True))
            mark = "* "
            if text[0].strip():
                end_block()
        elif request in {".PP", ".RS", ".RE"} or not line.strip():
            end_block()
        elif request in {".I", ".B"} or not request:
            text.append(_roff_inline(argument, marks_code=True))
    end_block()
    return blocks
