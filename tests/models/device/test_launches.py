"""Buffers are made once: whoever asks later gets a view of their beginning, and never more than there is."""

import pytest
import torch

from strata.models.device.launches import Workspace


def test_a_smaller_bucket_views_the_buffer_of_the_larger() -> None:
    workspace = Workspace(torch.device("cpu"))
    whole, part = workspace.take("logits", 32, 10), workspace.take("logits", 4, 10)
    part.fill_(7.0)
    assert whole[:4].eq(7.0).all()
    assert whole[4:].eq(0.0).all()
    assert part.is_contiguous()


def test_a_buffer_is_never_larger_than_it_was_made() -> None:
    workspace = Workspace(torch.device("cpu"))
    workspace.take("streams", 2, 8)
    with pytest.raises(ValueError, match="streams holds 16"):
        workspace.take("streams", 3, 8)
    with pytest.raises(ValueError, match="int32"):
        workspace.take("streams", 2, 8, dtype=torch.int32)
