"""Knows what must hold for the split and for duplicates. Does not know the real packages."""

import pytest

from training.corpus import Document, declared_licence, is_heldout, is_prose_or_code, split_documents


def _prose(seed: int, sentences: int = 12) -> list[str]:
    """Blocks in which no eight words in a row are the same for two seeds."""
    return [" ".join(f"w{seed}x{sentence}y{word}" for word in range(14)) + "." for sentence in range(sentences)]


def _documents() -> list[Document]:
    shared = "The very same paragraph of more than sixty characters stands in every single document of this set."
    return [Document(f"package/page{number}.html", (shared, *_prose(number))) for number in range(300)]


def test_split_has_no_document_and_no_paragraph_in_both_parts() -> None:
    train, heldout = split_documents(_documents())
    assert heldout and not {d.path for d in train} & {d.path for d in heldout}
    assert not {block for d in train for block in d.blocks} & {block for d in heldout for block in d.blocks}
    assert all(is_heldout(d.path) for d in heldout) and not any(is_heldout(d.path) for d in train)


def test_split_does_not_depend_on_the_order_of_documents() -> None:
    assert split_documents(_documents()) == split_documents(reversed(_documents()))


def test_copied_document_is_dropped_and_near_copy_does_not_stay_in_heldout() -> None:
    heldout_path = next(path for number in range(1000) if is_heldout(path := f"package/copy{number}.html"))
    original = Document("package/page0.html", tuple(_prose(0)))
    assert not is_heldout(original.path)
    nearly = tuple("Then " + block.lower().replace("y13", "changed") for block in original.blocks)
    train, heldout = split_documents([original, Document(heldout_path, nearly)])
    assert train == [original] and heldout == []


def test_tables_of_numbers_are_not_prose() -> None:
    assert not is_prose_or_code("0x1f 0x2e 0x3d 0x4c 0x5b 0x6a 0x79 0x88 0x97 0xa6 0xb5 0xc4")
    assert is_prose_or_code("The default is 1000 pages, which can be changed with a pragma.")
    assert is_prose_or_code("    for row in rows:\n        total += row[1] * 2\n    print(total)")


def test_licence_is_read_from_the_copyright_file_or_refused() -> None:
    assert declared_licence("Format: x\n\nFiles: *\nCopyright: me\nLicense: PostgreSQL\n text") == "PostgreSQL"
    with pytest.raises(ValueError, match="no licence"):
        declared_licence("all rights reserved")
