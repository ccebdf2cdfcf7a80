"""Values that several schemas have: ids, times, and sums."""

from typing import Annotated, TypedDict

Id = Annotated[str, "id"]
Time = Annotated[str, "time"]


class Spread(TypedDict):
    """The smallest, the middle and the largest of some numbers."""

    minimum: int
    median: int
    maximum: int


class Amount(TypedDict):
    """So many objects, with so many stored bytes."""

    objects: int
    bytes: int
