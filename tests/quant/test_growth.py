"""Bits a weight before and after packing: what grows is marked, and docs/storage-codes.md says the same."""

import pytest

from strata.quant import growth
from tests.house.source_tree import ROOT


@pytest.mark.parametrize(
    ("name", "code", "published", "packed", "grows"),
    [
        ("Q2_0", "code2", 2.25, 2.25, False),
        ("Q4_0", "code4", 4.5, 4.5, False),
        ("Q4_K", "code4", 4.5, 4.625, False),
        ("IQ2_XS", "code4", 2.3125, 4.5625, True),
        ("Q5_0", "code8", 5.5, 8.5, True),
        ("BF16", "bf16", 16, 16, False),
    ],
)
def test_bits_of_a_format(name: str, code: str, published: float, packed: float, grows: bool) -> None:
    found = growth.packed_format(name)
    assert found == growth.Packed(name, code, published, packed)
    assert found.grows is grows


def test_fp8_takes_its_row_scales() -> None:
    found = growth.packed_format("F8_E4M3")
    assert found is not None
    assert found.packed_bits == 8.25
    assert growth.packed_format("I64") is None


def test_the_document_says_what_the_code_says() -> None:
    text = (ROOT / "docs" / "storage-codes.md").read_text("utf-8")
    assert "\n".join(growth.as_markdown()) in text, "put growth.as_markdown() into docs/storage-codes.md"
