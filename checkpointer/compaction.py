"""When deltas become one larger delta, so that a chain stays short and a change is written again only a few times."""

from collections.abc import Sequence


def fold_start(sizes: Sequence[int], limit: int) -> int:
    """The first of those deltas that are to become one, given the size of each, the newest last.

    Nothing is folded (the newest stands alone) while there are at most `limit`. Then the newest swallow each older one
    that is not more than twice as large as they are together, and more where that is needed to stay within `limit`.
    """
    first = len(sizes) - 1
    if len(sizes) <= limit:
        return first
    gathered = sizes[first]
    while first > 0 and (first >= limit or sizes[first - 1] <= 2 * gathered):
        first -= 1
        gathered += sizes[first]
    return first
