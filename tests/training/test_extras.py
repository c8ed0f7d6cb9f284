"""Knows what must hold for extra text and its pages. Does not know the real packages."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from training.corpus import TRAIN_SEEN_SHARE, Document, Package, without_duplicates
from training.extra_pages import handwritten_manual_page_blocks, rust_book_blocks, sphinx_blocks
from training.extra_sources import EXTRA_PACKAGES, ExtraPackage, FreeFormLicence
from training.extras import limited, seen_text, unpack_extra, without_heldout_text


def _prose(name: str, sentences: int = 12) -> tuple[str, ...]:
    """Blocks in which no eight words in a row are the same for two names."""
    return tuple(" ".join(f"{name}{sentence}y{word}" for word in range(14)) + "." for sentence in range(sentences))


def test_block_with_one_run_of_heldout_words_is_dropped_from_extra_text() -> None:
    secret = "eight words in a row that nobody may read before the model is measured"
    heldout = seen_text([Document("held/out", (*_prose("h"), secret))])
    leaking = f"A long paragraph about something else, in which {secret.upper()} stands among many other words."
    (kept,) = without_heldout_text([Document("extra/page", (*_prose("e"), leaking))], heldout)
    assert kept.blocks == _prose("e")


def test_other_version_of_a_heldout_document_is_dropped_whole() -> None:
    heldout = seen_text([Document("held/out", _prose("h"))])
    assert list(without_heldout_text([Document("extra/page", (*_prose("h"), *_prose("e", 4)))], heldout)) == []


def test_text_that_train_holds_already_is_dropped() -> None:
    seen = seen_text([Document("train/page", _prose("t"))])
    extra = [Document("extra/copy", _prose("t")), Document("extra/new", _prose("n")), Document("extra/n2", _prose("n"))]
    assert [document.path for document in without_duplicates(extra, seen, TRAIN_SEEN_SHARE)] == ["extra/new"]


def test_limit_stops_reading() -> None:
    read: list[int] = []

    def documents() -> Iterator[Document]:
        for number in range(100):
            read.append(number)
            yield Document(f"extra/{number}", _prose(f"p{number}x"))

    assert len(list(limited(documents(), 2500))) == len(read) < 10


@pytest.fixture
def free_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExtraPackage:
    """A package whose copyright file is prose, as if it were unpacked."""
    copyright_file = tmp_path / "usr/share/doc/some-doc/copyright"
    copyright_file.parent.mkdir(parents=True)
    copyright_file.write_text("Anyone may\n   copy this freely.")

    def unpacked(name: str, debs: Path, folder: Path, licence: str | None = None) -> Package:
        return Package(name, "1", licence or "GPL-3+", tmp_path)

    monkeypatch.setattr("training.extras.unpack", unpacked)
    return ExtraPackage("some-doc", (), FreeFormLicence("MIT", "Anyone may copy this freely."))


def test_licence_that_is_not_permissive_is_refused(free_form: ExtraPackage, tmp_path: Path) -> None:
    assert unpack_extra(free_form, tmp_path, tmp_path).licence == "MIT"
    with pytest.raises(ValueError, match="not among"):
        unpack_extra(ExtraPackage("some-doc", ()), tmp_path, tmp_path)


def test_free_form_licence_must_hold_its_words(free_form: ExtraPackage, tmp_path: Path) -> None:
    changed = ExtraPackage(free_form.name, (), FreeFormLicence("MIT", "Anyone may sell this."))
    with pytest.raises(ValueError, match="no longer holds"):
        unpack_extra(changed, tmp_path, tmp_path)


def test_no_package_is_listed_twice_and_every_source_belongs_to_its_package() -> None:
    names = [extra.name for extra in EXTRA_PACKAGES]
    assert len(set(names)) == len(names)
    assert all(source.package == extra.name for extra in EXTRA_PACKAGES for source in extra.sources)


def test_sphinx_page_is_cut_to_its_content() -> None:
    page = (
        '<body><div class="related">next | previous</div><div class="body" role="main"><h1>Title'
        '<a class="headerlink" href="#t">¶</a></h1><div class="toctree-wrapper compound"><ul><li>Other</li></ul></div>'
        '<dl><dt class="sig sig-object py"><code>take</code>(<em>rows</em>)</dt><dd><p>It’s read.</p><dl>'
        '<dt>rows<span class="classifier">int</span></dt></dl></dd></dl></div>'
        '<div class="sphinxsidebar">Quick search</div></body>'
    )
    assert sphinx_blocks(page) == ["# Title", "`take(rows)`", "It's read.", "rows : int"]


def test_hidden_lines_of_a_rust_listing_are_not_read() -> None:
    page = '<main><pre><code><span class="boring">fn main() {\n</span>let x = 5;\n</code></pre></main><p>Previous</p>'
    assert rust_book_blocks(page) == ["    let x = 5;"]


def test_tcl_macros_are_read_as_prose_terms_and_code() -> None:
    page = (
        "'\\\" comment\n.TH lsort 3tcl\n.de QW\ndefinition\n..\n.SH NAME\nlsort \\- Sort\n.SH OPTIONS\n"
        ".TP\n\\fB\\-ascii\\fR\nCompare by\n.QW words .\n.CS\nlsort {b a}\n.CE\n.PP\nThe end."
    )
    assert handwritten_manual_page_blocks(page) == [
        "# NAME", "lsort - Sort", "# OPTIONS", "* `-ascii`", 'Compare by "words".', "    lsort {b a}", "The end.",
    ]  # fmt: skip
