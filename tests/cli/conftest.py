"""A command line as it is in a process of its own: other tests of this process may have loaded what a command has not.

The command line parser checks values by pydantic instead of by our settings where it finds pydantic loaded.
"""

import sys

import pytest


@pytest.fixture(autouse=True)
def without_pydantic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides pydantic from whoever looks whether it is loaded."""
    monkeypatch.delitem(sys.modules, "pydantic", raising=False)
