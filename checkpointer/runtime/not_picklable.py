"""What belongs to the process that made it, and is refused where it would be sent to another one."""

from typing import ClassVar, NoReturn, SupportsIndex

from pyspark_checkpointer.manifests.errors import IllegalArgumentError


class NotPicklable:
    """Refuses to be pickled or copied: what the copy is given would be lost, and what it holds would be used twice.

    A class that can be copied has methods of its own for that.
    """

    __slots__ = ()

    _instead: ClassVar[str]
    """What to do in place of sending it to another process."""

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        raise IllegalArgumentError(
            f"{type(self).__name__}: cannot be pickled, copied, sent to tasks or used in a UDF: {self._instead}"
        )
