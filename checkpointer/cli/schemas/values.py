"""Define values that several schemas have: ids, times, and sums."""

from typing import Annotated, TypedDict

Id = Annotated[str, "id"]
Time = Annotated[str, "time"]


class Spread(TypedDict):
    """The minimum, the median and the maximum of some numbers."""

    minimum: int
    median: int
    maximum: int


class Amount(TypedDict):
    """A number of objects, and their stored bytes."""

    objects: int
    bytes: int
