"""Names for tests of values, the same in every process: sets have no order, and addresses differ."""

import re
from typing import Any


def shown(value: Any) -> str:
    """Return what a value looks like, up to fifty characters. The members of its sets, at any depth, are sorted."""
    return _shown(value)[:50]


def _shown(value: Any) -> str:
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}({', '.join(sorted(map(_shown, value)))})"
    if type(value) in (list, tuple):
        return f"{type(value).__name__}({', '.join(map(_shown, value))})"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
