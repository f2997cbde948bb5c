"""Stages in a few steps."""

import pytest

from duologue.training import loop


@pytest.fixture(autouse=True)
def soon_warm(monkeypatch):
    """The learning rate rises at once."""
    monkeypatch.setattr(loop, "WARM_UP", 5)
