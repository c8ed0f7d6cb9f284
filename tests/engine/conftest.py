"""Stages of tests multiply by the C++ library; a file that is about the torch road itself has a fixture of its own."""

import pytest


@pytest.fixture(autouse=True)
def stages_multiply_by_the_library(library_products: None) -> None:
    """See `library_products`."""
