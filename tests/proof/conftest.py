"""What proofs of security share."""

import os

import pytest


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for a disk: these proofs are about what is touched, not about what survives."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
