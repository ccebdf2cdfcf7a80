"""Names for tests of values, the same in every process: sets have no order, and addresses differ."""

import re
from typing import Any


def shown(value: Any) -> str:
    """What a value looks like, up to fifty characters."""
    if isinstance(value, set | frozenset):
        value = f"{type(value).__name__}({', '.join(sorted(map(shown, value)))})"
        return value[:50]
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))[:50]
