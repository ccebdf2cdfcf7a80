"""Finding out what became of a swap: the one request that a store never repeats by itself."""

from pyspark_checkpointer.errors import (
    CheckpointError,
    OutcomeUnknownError,
    RetryableError,
    StoreNotFoundError,
    StoreRefusedError,
    SwapNotSentError,
)
from pyspark_checkpointer.storage.base import Blob, ObjectNotFoundError, PreconditionFailedError, Store

NOT_TOLD = (RetryableError, StoreRefusedError, StoreNotFoundError)
"""What a store raises that cannot, or will not, tell what it holds: the one proves as little as the other."""

SENDS = 5
"""How often a swap that changed nothing visible is sent again before its outcome is called unknown."""


class UndecidedError(Exception):
    """The swap was sent, and nothing proves whether it took effect. For the caller to say what can be done."""


async def find(store: Store, path: str, limit: int) -> Blob | None:
    """Return the object, or None where there is none."""
    try:
        return await store.get(path, limit=limit)
    except ObjectNotFoundError:
        return None


async def decide(store: Store, path: str, data: bytes, expected: str | None, limit: int) -> Blob | None:
    """Return what is at `path` once the swap was decided: `data` itself if it took effect, or what somebody else wrote.

    `data` must differ from all that was ever written to `path`. Only a changed version proves that an unanswered or
    refused request is dead. While the version is what it was, the same request is sent again, and it does not matter
    which of them lands. What is in place, and the disk has not confirmed, is written again. Raises `UndecidedError`,
    caused by what went wrong last, where all that tells nothing; what the store refuses outright; and `CorruptionError`
    of what is too large to be read, which proves nothing either.
    """
    undecided: CheckpointError | None = None
    unconfirmed = False
    for _ in range(SENDS):
        try:
            return Blob(data, await store.compare_and_swap(path, data, expected))
        except SwapNotSentError as error:
            if undecided is not None:
                raise UndecidedError from error
            raise
        except (RetryableError, PreconditionFailedError) as error:
            undecided = error
        except OutcomeUnknownError as error:
            undecided, unconfirmed = error, True
        except CheckpointError as error:
            if undecided is not None:
                raise UndecidedError from error
            raise
        try:
            found = await find(store, path, limit)
        except NOT_TOLD as error:
            raise UndecidedError from error
        if unconfirmed and found is not None and found.data == data:
            expected = found.version
        elif (None if found is None else found.version) != expected:
            return found
    raise UndecidedError from undecided
