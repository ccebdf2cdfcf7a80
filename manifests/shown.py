"""Show keys and values of users, and what was read, in error messages: never long, whatever they are."""

import reprlib
from typing import Any

LONGEST = 2_000
"""Bits of an integer that is shown in digits. Python itself refuses to write more than some 14,000 in digits."""


class _Short(reprlib.Repr):
    """Shows the beginning of texts and containers."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 4, 80, 80, 80

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() <= LONGEST else f"an integer of {x.bit_length():,} bits"

    def repr_bytes(self, x: bytes, level: int) -> str:
        return repr(x) if len(x) <= 40 else f"{x[:40]!r}..."


_SHORT = _Short()


def show(value: Any) -> str:
    """Return what a value looks like, at most some hundred characters of it."""
    try:
        shown = _SHORT.repr(value)
    except Exception:  # whatever a repr may raise: the value is named by its type
        shown = f"of type {type(value).__name__}"
    return shown if len(shown) <= 160 else f"{shown[:160]}..."
