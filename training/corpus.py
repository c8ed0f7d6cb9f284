"""Knows which manuals the shipped model reads: packages, pages left out, duplicates, the train / held-out split.
Does not know markup (`cleaning.py`, `restructured.py`), tokens, or the dictionary.
"""

import gzip
import re
import subprocess
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from training.cleaning import CODE_INDENT, html_blocks, manual_page_blocks, pod_blocks
from training.restructured import restructured_text_blocks

DICTIONARY_PACKAGE = "wordnet-base"
MANUAL_PACKAGES = ("python3.11-doc", "postgresql-doc-15", "sqlite3-doc", "perl-doc")

HELDOUT_PER_MILLE = 30
SHINGLE_WORDS = 8
# A block of which more than this share of 8-word runs was read before is a near duplicate. Train text may keep
# some boilerplate (it is read many times anyway); held-out text must not be known from train.
TRAIN_SEEN_SHARE = 0.8
HELDOUT_SEEN_SHARE = 0.5
MIN_DUPLICATE_CHARACTERS = 60
MIN_DOCUMENT_CHARACTERS = 400
MAX_BLOCK_CHARACTERS = 6_000  # longer ones are lists of names and tables drawn with blanks
MIN_KEPT_SHARE = 0.35


@dataclass(frozen=True)
class Document:
    """One page of a manual. `path` is `package/path inside the package's documentation`."""

    path: str
    blocks: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n\n".join(self.blocks) + "\n"


@dataclass(frozen=True)
class Package:
    """An unpacked Debian package: where it lies, its version and the licence its copyright file declares."""

    name: str
    version: str
    licence: str
    folder: Path


@dataclass(frozen=True)
class Source:
    """Pages of one format in one package: files matching `pattern` below `folder`, without those `left_out` matches."""

    package: str
    folder: str
    pattern: str
    left_out: re.Pattern[str]
    read_blocks: Callable[[str], list[str]]


# Left out: change logs that are bare lists (essays on what is new stay), indices and cross references, pages that
# repeat other pages, tables of codes.
SOURCES = (
    Source(
        "python3.11-doc",
        "usr/share/doc/python3.11/html/_sources",
        "**/*.rst.txt",
        re.compile(r"(^|/)(contents|genindex|index|changelog)\.rst|whatsnew/changelog|^tutorial/index"),
        restructured_text_blocks,
    ),
    Source(
        "postgresql-doc-15",
        "usr/share/doc/postgresql-doc-15/html",
        "*.html",
        re.compile(
            r"^(index|bookindex|release.*|sql-keywords-appendix|errcodes-appendix|legalnotice|biblio|features-.*)\.html"
        ),
        html_blocks,
    ),
    Source(
        "sqlite3-doc",
        "usr/share/doc/sqlite3",
        "**/*.html",
        re.compile(
            r"^(doc_.*|keyword_index|syntaxdiagrams|syntax|requirements|changes|chronology|oldnews|news|sitemap|capi3ref"
            r"|fileformat|hp1|index|doclist|docs|consortium_agreement.*|cves|versionnumbers)\.html|^releaselog/"
            r"|^(c3ref|session)/(intro|funclist|constlist|objlist|c_alert|toc)\.html|^syntax/"
        ),
        html_blocks,
    ),
    Source(
        "perl-doc",
        "usr/share/perl",
        "**/*.pod",
        re.compile(r"/(perltoc|perldelta|perluniprops|perlhist|perlmodlib|perl|perlcn|perljp|perlko|perltw)\.pod$"),
        pod_blocks,
    ),
    Source(
        "perl-doc",
        "usr/share/man/man3",
        "*.3perl.gz",
        re.compile(r"^(Unicode::Collate::|Locale::Codes|charnames|perlfaq)"),
        manual_page_blocks,
    ),
)


def find_or_download(package: str, debs: Path) -> Path:
    """The package's .deb in `debs`, fetched with `apt-get download` (which installs nothing) when it is not there."""
    debs.mkdir(parents=True, exist_ok=True)
    found = sorted(debs.glob(f"{package}_*.deb"))
    if not found:
        subprocess.run(["apt-get", "download", package], cwd=debs, check=True, stdout=subprocess.DEVNULL)
        found = sorted(debs.glob(f"{package}_*.deb"))
    if not found:
        raise FileNotFoundError(f"no {package}_*.deb in {debs}, and apt-get download brought none")
    return found[-1]


def declared_licence(copyright_text: str) -> str:
    """The name of the licence that a Debian copyright file gives for upstream's files.

    Raises ValueError when the file neither follows Debian's machine-readable form nor holds Python's licence.
    """
    upstream = re.search(r"^Files:[ \t]*\*[ \t]*\n(?:.*\n)*?License:[ \t]*(\S.*)", copyright_text, re.MULTILINE)
    if upstream:
        return upstream[1].strip()
    if "PYTHON SOFTWARE FOUNDATION LICENSE" in copyright_text.upper():
        return "PSF-2.0"
    raise ValueError("the copyright file names no licence for 'Files: *'; read it and extend declared_licence")


def unpack(package: str, debs: Path, unpacked: Path, licence: str | None = None) -> Package:
    """Unpacks one package below `unpacked` (never installs it) and reads its version, and its licence if not given."""
    archive = find_or_download(package, debs)
    folder = unpacked / package
    if not folder.exists():
        partial = unpacked / f"{package}.partial"
        partial.mkdir(parents=True, exist_ok=True)
        subprocess.run(["dpkg", "-x", str(archive), str(partial)], check=True)
        partial.rename(folder)
    version = archive.name.split("_")[1].replace("%3a", ":")
    if licence is None:
        licence = declared_licence((folder / "usr/share/doc" / package / "copyright").read_text("utf-8", "replace"))
    return Package(package, version, licence, folder)


def is_prose_or_code(block: str) -> bool:
    """False for overlong blocks and for blocks that are mostly digits, hex or rules instead of letters and blanks."""
    if len(block) > MAX_BLOCK_CHARACTERS:
        return False
    if len(block) < 40:
        return True
    readable = sum(character.isalpha() or character in " \n_" for character in block)
    digits = sum(character.isdigit() for character in block)
    return readable >= 0.55 * len(block) and digits <= 0.2 * len(block) and len(set(block)) >= 8


def source_pages(source: Source, package_folder: Path) -> list[Path]:
    """The files of one source in the order of their paths."""
    folder = package_folder / source.folder
    return [
        path
        for path in sorted(folder.glob(source.pattern))
        if not path.is_symlink() and not source.left_out.search(path.relative_to(folder).as_posix())
    ]


def read_document(source: Source, package_folder: Path, path: Path) -> Document | None:
    """One cleaned page; None when there is next to no text on it."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    blocks = tuple(filter(is_prose_or_code, source.read_blocks(raw.decode("utf-8", "replace"))))
    if sum(map(len, blocks)) < MIN_DOCUMENT_CHARACTERS:
        return None
    inside = path.relative_to(package_folder / source.folder).as_posix()
    return Document(f"{source.package}/{inside}", blocks)


def read_documents(source: Source, package_folder: Path) -> Iterator[Document]:
    """The cleaned pages of one source in the order of their paths; pages with next to no text are skipped."""
    for path in source_pages(source, package_folder):
        if document := read_document(source, package_folder, path):
            yield document


def is_heldout(path: str) -> bool:
    """Whether the document of this path is held out: a hash of the path alone decides, 3 % of all."""
    return int.from_bytes(sha256(path.encode()).digest()[:4], "big") % 1000 < HELDOUT_PER_MILLE


class SeenText:
    """What was read so far: hashes of whole blocks and of every run of eight words."""

    def __init__(self) -> None:
        self._blocks: set[bytes] = set()
        self._shingles: set[int] = set()

    def is_duplicate(self, block: str, seen_share: float) -> bool:
        """True for a block read before, or of whose eight-word runs more than `seen_share` were read before."""
        if len(block) < MIN_DUPLICATE_CHARACTERS:
            return False
        if _block_hash(block) in self._blocks:
            return True
        shingles = _shingles(block)
        seen = sum(shingle in self._shingles for shingle in shingles)
        return seen > seen_share * len(shingles) if shingles else False

    def shares_run(self, block: str) -> bool:
        """True for a block read before, or of whose eight-word runs one or more were read before."""
        if len(block) >= MIN_DUPLICATE_CHARACTERS and _block_hash(block) in self._blocks:
            return True
        return any(shingle in self._shingles for shingle in _shingles(block))

    def add(self, block: str) -> None:
        """Remembers a block."""
        self._blocks.add(_block_hash(block))
        self._shingles.update(_shingles(block))


def _words(block: str) -> list[str]:
    """The words of a block; punctuation counts in code only."""
    is_code = block.startswith(CODE_INDENT)
    return re.findall(r"\w+|[^\w\s]+" if is_code else r"\w+", block.lower())


def _block_hash(block: str) -> bytes:
    return sha256(" ".join(_words(block)).encode()).digest()[:8]


def _shingles(block: str) -> list[int]:
    words = [word.encode() for word in _words(block)]
    return [zlib.crc32(b" ".join(words[i : i + SHINGLE_WORDS])) for i in range(len(words) - SHINGLE_WORDS + 1)]


def without_duplicates(documents: Iterable[Document], seen: SeenText, seen_share: float) -> Iterator[Document]:
    """The documents without blocks already in `seen`, which grows; a document that mostly repeats others is dropped.

    A block repeated inside its own document goes as well. Headings left without text are removed.
    """
    for document in documents:
        kept: list[str] = []
        for block in document.blocks:
            if not seen.is_duplicate(block, seen_share):
                kept.append(block)
                seen.add(block)
        is_heading = [block.startswith("#") for block in kept] + [True]
        kept = [block for at, block in enumerate(kept) if not (is_heading[at] and is_heading[at + 1])]
        characters, before = sum(map(len, kept)), sum(map(len, document.blocks))
        if characters >= max(MIN_DOCUMENT_CHARACTERS, MIN_KEPT_SHARE * before):
            yield Document(document.path, tuple(kept))


def split_documents(documents: Iterable[Document]) -> tuple[list[Document], list[Document]]:
    """(train, held-out): split by the hash of each path, both deduplicated, held-out also against all of train."""
    everything = sorted(documents, key=lambda document: sha256(document.path.encode()).digest())
    seen = SeenText()
    train = list(without_duplicates((d for d in everything if not is_heldout(d.path)), seen, TRAIN_SEEN_SHARE))
    heldout = list(without_duplicates((d for d in everything if is_heldout(d.path)), seen, HELDOUT_SEEN_SHARE))
    return train, heldout
