"""Refuse to pickle objects that must not leave the process that made them."""

from typing import ClassVar, NoReturn, SupportsIndex

from pyspark_checkpointer.manifests.errors import IllegalArgumentError


class NotPicklable:
    """An object that refuses to be pickled or copied.

    Values that are written to a copy would be lost. A resource that both hold, such as a lease, would be used twice. A
    class that can be copied defines its own methods for that.
    """

    __slots__ = ()

    _instead: ClassVar[str]
    """The advice of the error: what to do instead of sending it to another process."""

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        raise IllegalArgumentError(
            f"{type(self).__name__}: cannot be pickled, copied, sent to tasks or used in a UDF: {self._instead}"
        )
