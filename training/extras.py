"""Knows how extra packages extend the training text: order, limits, duplicates; that held-out text stays unseen.
Does not know the packages (`extra_sources.py`), markup, or tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from training.corpus import (
    MIN_DOCUMENT_CHARACTERS,
    MIN_KEPT_SHARE,
    TRAIN_SEEN_SHARE,
    Document,
    Package,
    SeenText,
    read_document,
    source_pages,
    unpack,
    without_duplicates,
)
from training.extra_sources import EXTRA_PACKAGES, PERMISSIVE_LICENCES, ExtraPackage

# For balance: no package may be more than about three million tokens (the tokenizer takes 3.9 bytes for one).
MAX_PACKAGE_CHARACTERS = 12_000_000


@dataclass(frozen=True)
class ExtraText:
    """What one package adds."""

    package: Package
    documents: tuple[Document, ...]


def unpack_extra(extra: ExtraPackage, debs: Path, unpacked: Path) -> Package:
    """Unpacks one extra package and checks its licence; raises ValueError for one that is not permissive."""
    if extra.copyright_package is not None:
        licence: str | None = unpack(extra.copyright_package, debs, unpacked).licence
    else:
        licence = _free_form_licence(extra, debs, unpacked)
    package = unpack(extra.name, debs, unpacked, licence)
    if package.licence not in PERMISSIVE_LICENCES:
        raise ValueError(f"{extra.name} is under {package.licence!r}, which is not among {sorted(PERMISSIVE_LICENCES)}")
    return package


def _free_form_licence(extra: ExtraPackage, debs: Path, unpacked: Path) -> str | None:
    """The name of a licence written in free form, its words checked; None when the file is machine-readable."""
    declared = extra.free_form_licence
    if declared is None:
        return None
    folder = unpack(extra.name, debs, unpacked, declared.name).folder
    words = (folder / "usr/share/doc" / extra.name / "copyright").read_text("utf-8", "replace").split()
    if declared.proof not in " ".join(words):
        raise ValueError(f"the copyright file of {extra.name} no longer holds the words of {declared.name}; read it")
    return declared.name


def without_heldout_text(documents: Iterable[Document], heldout: SeenText) -> Iterator[Document]:
    """The documents without every block that is in `heldout` or shares but one run of eight words with it.

    A document that loses most of its text this way is a version of a held-out one and is dropped whole.
    """
    for document in documents:
        kept = tuple(block for block in document.blocks if not heldout.shares_run(block))
        characters, before = sum(map(len, kept)), sum(map(len, document.blocks))
        if characters >= max(MIN_DOCUMENT_CHARACTERS, MIN_KEPT_SHARE * before):
            yield Document(document.path, kept)


def limited(documents: Iterable[Document], characters: int) -> Iterator[Document]:
    """The first documents, until they hold `characters`; those after are not even read."""
    held = 0
    for document in documents:
        yield document
        held += len(document.text)
        if held >= characters:
            return


def _read_pages(extra: ExtraPackage, folder: Path) -> Iterator[Document]:
    """Page by page, source after source; inside one in the order of the paths' hashes, so a limit takes a sample."""
    for source in extra.sources:
        pages = source_pages(source, folder)
        for page in sorted(pages, key=lambda page: sha256(page.relative_to(folder).as_posix().encode()).digest()):
            if document := read_document(source, folder, page):
                yield document


def seen_text(documents: Iterable[Document]) -> SeenText:
    """Everything that stands in `documents`."""
    seen = SeenText()
    for document in documents:
        for block in document.blocks:
            seen.add(block)
    return seen


def read_extras(
    train: Sequence[Document], heldout: Sequence[Document], debs: Path, unpacked: Path
) -> Iterator[ExtraText]:
    """The text of every extra package, without what was read before and without held-out text."""
    seen, never_to_see = seen_text(train), seen_text(heldout)
    for extra in EXTRA_PACKAGES:
        package = unpack_extra(extra, debs, unpacked)
        unseen = without_heldout_text(_read_pages(extra, package.folder), never_to_see)
        new = without_duplicates(unseen, seen, TRAIN_SEEN_SHARE)
        yield ExtraText(package, tuple(limited(new, MAX_PACKAGE_CHARACTERS)))
