"""The small trained model that ships with the package. Knows where its files lie and nothing of what is in them."""

from pathlib import Path


def default_path() -> Path:
    """The directory of the model that is used when none is named."""
    return Path(__file__).parent / "pocket"
