"""What several proofs need."""

import os
from functools import lru_cache

import pytest

from checkpointer import pointer
from manifests import wire


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for a disk: some proofs are about what is touched, not about what survives."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding is a function of bytes, and takes half of the time: equal bytes are decoded once."""
    monkeypatch.setattr(wire, "decode_manifest", lru_cache(4096)(wire.decode_manifest))
    monkeypatch.setattr(pointer, "decode_pointer", lru_cache(4096)(pointer.decode_pointer))
