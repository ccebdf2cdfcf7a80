"""What belongs to the process that made it: it is neither pickled nor copied."""

from typing import ClassVar, NoReturn, SupportsIndex

from checkpointer.errors import IllegalArgumentError


class Live:
    """An object with a connection, a lease or updates of its own. A copy would drop updates, or use the lease twice."""

    __slots__ = ()

    _instead: ClassVar[str]
    """What to do in place of sending it to another process."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise IllegalArgumentError(
            f"a {type(self).__name__} was about to be pickled or copied, and belongs to the process that made it: "
            f"{self._instead}"
        )


__all__ = ["Live"]
