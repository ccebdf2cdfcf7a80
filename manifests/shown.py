"""Show values in error messages with at most some hundred characters.

Any value can be shown.
"""

import reprlib
from typing import Any

MAX_SHOWN_BITS = 2_000
"""Bits of an integer that is shown in digits, at most.

Python itself refuses to write more than some 14,000.
"""


class _Short(reprlib.Repr):
    """Shows the beginning of texts and containers."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 4, 80, 80, 80

    def repr_int(self, x: int, level: int) -> str:
        return (
            super().repr_int(x, level) if x.bit_length() <= MAX_SHOWN_BITS else f"an integer of {x.bit_length():,} bits"
        )

    def repr_bytes(self, x: bytes, level: int) -> str:
        return repr(x) if len(x) <= 40 else f"{x[:40]!r}..."


_SHORT = _Short()


def show(value: Any) -> str:
    """Return the beginning of a value's `repr`."""
    try:
        shown = _SHORT.repr(value)
    except Exception:  # a `repr` of a user's class may raise anything
        shown = f"of type {type(value).__name__}"
    # The limits above hold for each part of a value, and not for all of them together.
    return shown if len(shown) <= 160 else f"{shown[:160]}..."
