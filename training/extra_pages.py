"""Knows how pages of the extra packages are cut to their content and brought to the forms `cleaning.py` reads.
Does not know which packages those are (`extra_sources.py`), nor duplicates and limits (`extras.py`).
"""

import re
import shlex
from collections.abc import Callable

from training.cleaning import html_blocks, manual_page_blocks

_LINKS_TO_SELF = re.compile(
    r'<a [^>]*class="[^"]*\b(?:headerlink|anchor|srclink|src|mark|viewcode-block|permalink|test-arrow)\b[^"]*"[^>]*>'
    r".*?</a>",
    re.DOTALL,
)
_NEVER_READ = re.compile(
    r'<span class="(?:boring|viewcode-link|linenos|out-of-band)">.*?</span>|<details class="changelog">.*?</details>'
    r'|<div class="(?:toplang|top|up|spirit-nav|bottomlang|title-anchors|toctree-wrapper compound|contents [^"]*'
    r'|sphx-glr-[\w-]*(?:footer|timing|note)[^"]*)"[^>]*>.*?</div>|<summary class="hideme">.*?</summary>'
    r'|<div id="(?:quickview|toc)">.*?</div>|<nav\b.*?</nav>|<a [^>]*><span class="viewcode-link">.*?</a>',
    re.DOTALL,
)
_ASCII_QUOTES = str.maketrans("‘’“”", "''\"\"")  # what the sources said before they were typeset
# Traces of failures while the package was built; what rustdoc's buttons leave.
_NOT_TEXT = re.compile(r"/build/[\w.+-]+/|\[−\]$")
_TWO_LISTINGS = re.compile(r"</code>\s*<code")  # one example written for two module systems
_TERM_KIND = re.compile(r'<span class="classifier">')
_SIGNATURE = re.compile(r'(<dt class="[^"]*\bsig\b[^"]*"[^>]*>)(.*?)</dt>', re.DOTALL)
_CODE_TAG = re.compile(r"</?(?:code|tt)\b[^>]*>")


def _signature_as_code(match: re.Match[str]) -> str:
    return f"{match[1]}<code>{_CODE_TAG.sub('', match[2]).strip()}</code></dt>"


def page_reader(begin: str, end: str) -> Callable[[str], list[str]]:
    """A reader of pages whose content lies between the first match of `begin` and the next match of `end`."""
    begins, ends = re.compile(begin), re.compile(end)

    def read(page: str) -> list[str]:
        if first := begins.search(page):
            page = page[page.rfind("<", 0, first.end()) :]
        if last := ends.search(page):
            page = page[: page.rfind("<", 0, last.end())]
        page = _TWO_LISTINGS.sub("</code>\n\n<code", _NEVER_READ.sub("", _LINKS_TO_SELF.sub("", page)))
        page = _TERM_KIND.sub(" : ", _SIGNATURE.sub(_signature_as_code, page)).translate(_ASCII_QUOTES)
        return [block for block in html_blocks(page) if not _NOT_TEXT.search(block)]

    return read


sphinx_blocks = page_reader(
    r'role="main"|class="yui-g"',
    r'</main|</article|class="sphinxsidebar|class="footer|id="sidebar"|id="docs-bottom-navigation|prev-next-|<footer',
)
rust_book_blocks = page_reader(r"<main\b", r"</main")
rustdoc_blocks = page_reader(
    r'id="main-content"', r'id="(?:trait-implementations|synthetic-implementations|implementors)"'
)
node_blocks = page_reader(r'id="apicontent"', r"</body")
apache_blocks = page_reader(r'id="page-content"', r'class="bottomlang"|id="footer"')
erlang_blocks = page_reader(r'class="innertube"', r'class="footer"')
docbook_blocks = page_reader(r'class="(?:section|chapter|refentry|titlepage)"', r'class="copyright-footer"')
tomcat_blocks = page_reader(r'id="content"', r'id="footer"')
nim_blocks = page_reader(r'class="nine columns"', r'class="twelve-columns footer')
plain_page_blocks = page_reader(r"<body\b", r"</body")

_BOLD = re.compile(r"\\fB(.*?)\\f[RP]")
_OPENS_CODE, _ENDS_CODE = frozenset({".CS", ".nf", ".DS"}), frozenset({".CE", ".fi", ".DE"})
_NEW_PARAGRAPH = frozenset({".LP", ".P", ".PP", ".sp", ".br"})
_JOINED_FONTS = frozenset({".BR", ".BI", ".IR", ".IB", ".RB", ".RI"})


def _arguments(text: str) -> list[str]:
    try:
        return shlex.split(text.replace("\\", "\\\\").replace("'", "\\'"))
    except ValueError:
        return text.replace('"', "").split()


def _as_pod2man(request: str, rest: str) -> str | None:
    """One request of a page written by hand as pod2man would write it; None for requests that only set type."""
    values = _arguments(rest)
    if request in _OPENS_CODE | _ENDS_CODE:
        return ".Vb 4" if request in _OPENS_CODE else ".Ve"
    if request in _NEW_PARAGRAPH:
        return ".PP"
    if request in _JOINED_FONTS:
        return "".join(values)
    if request in {".QW", ".PQ"} and values:
        quoted = f'"{values[0]}"'
        return (quoted if request == ".QW" else f"({quoted})") + "".join(values[1:])
    if request == ".AP" and values:
        return f'.IP "{" ".join(values[:2])} ({" ".join(values[2:])})" 4'
    if request == ".OP" and values:
        return f'.IP "{", ".join(values)}" 4'
    return f"{request} {rest}" if request in {".TH", ".SH", ".SS", ".IP", ".B", ".I", ".RS", ".RE"} else None


def handwritten_manual_page_blocks(source: str) -> list[str]:
    """The blocks of a manual page that was not made by pod2man: Tcl's and curl's macros."""
    lines: list[str] = []
    defines_macro = inside_code = term_follows = False
    for line in source.split("\n"):
        request, _, rest = line.partition(" ")
        if defines_macro or request == ".de":
            defines_macro = line != ".."
        elif line.startswith(("'\\\"", '.\\"')):
            continue
        elif request == ".TP":
            term_follows = True
        else:
            translated = _as_pod2man(request, rest) if line.startswith(".") else line
            if translated is None:
                continue
            if translated in {".Vb 4", ".Ve"}:
                inside_code = translated != ".Ve"
            elif not inside_code:
                translated = _BOLD.sub(r"\\f(CW\1\\fR", translated.replace("\t", " "))
            if term_follows and translated.strip() and not translated.startswith(".PP"):
                term = re.sub(r"^\.[BI] ", "", translated)
                translated, term_follows = f'.IP "{term}" 4', False
            lines.append(translated)
    return manual_page_blocks("\n" + "\n".join(lines))
