"""Find the outcome of a swap, even where its answer is lost.

No store repeats a swap by itself.
"""

import asyncio
import time

from pyspark_checkpointer.errors import (
    CheckpointError,
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    OutcomeUnknownError,
    RetryableError,
    StoreNotFoundError,
    StoreRefusedError,
    SwapNotSentError,
)
from pyspark_checkpointer.storage.base import Blob, ObjectNotFoundError, PreconditionFailedError, Store

READ_FAILURES = (RetryableError, StoreRefusedError, StoreNotFoundError)
"""Errors of a store that cannot or will not tell what it holds.

They do not prove what the store holds.
"""

MAX_SENDS = 8
"""Number of times that a swap without visible effect is sent.

After that its outcome is called unknown.
"""

FIRST_PAUSE = 0.2
"""Seconds before a failed swap is sent again. Each further pause is five times as long, up to `LONGEST_PAUSE`."""

PATIENCE = 120.0
"""Seconds after which a swap is not sent again: a store may take long to give no answer."""

LONGEST_PAUSE = 5.0
"""Seconds of the longest pause. All pauses together are half a minute.

A store that is well again is not waited for longer: a batch and its lease may depend on the swap.
"""


class UndecidedError(Exception):
    """The swap was sent, and nothing proves whether it took effect.

    The caller says what can be done.
    """


def pause_before(sent: int) -> float:
    """Return the seconds to wait before a swap that failed `sent` times."""
    return min(FIRST_PAUSE * 5.0 ** (sent - 1), LONGEST_PAUSE)


async def find_object(store: Store, path: str, limit: int) -> Blob | None:
    """Return the object, or None where there is none."""
    try:
        return await store.get(path, limit=limit)
    except ObjectNotFoundError:
        return None


async def swap_until_decided(store: Store, path: str, data: bytes, expected: str | None, limit: int) -> Blob | None:
    """Swap `data` in, find out the outcome, and return the object at `path` then.

    This is `data` itself, or another writer's object. `data` must differ from everything that was ever written to
    `path`. These are the proofs:

    * An answer to the swap proves that it took effect.
    * A changed version proves that an unanswered or refused request is dead: its condition can never hold again.
    * An unchanged version proves nothing: the request may still be under way. The same request is sent again, and it
      does not matter which of them lands.
    * Bytes in place that the disk has not confirmed are no proof either: they are written again.

    Raises:
        UndecidedError: None of that gave an answer; its cause is what went wrong last.
        CheckpointError: The store refused the first request outright, or it was never sent.
        CorruptionError: What is there is larger than `limit`, and was not read.
    """
    undecided: CheckpointError | None = None
    unconfirmed = False
    refused = False
    started = time.monotonic()
    for sent in range(MAX_SENDS):
        if time.monotonic() - started > PATIENCE:
            break
        # The store failed, and shows no effect of it. Sent again at once, the swap would fail again.
        if isinstance(undecided, RetryableError):
            await asyncio.sleep(pause_before(sent))
        try:
            return Blob(data, await store.compare_and_swap(path, data, expected))
        except SwapNotSentError as error:
            # This request is certain not to land, but an earlier one may.
            if undecided is not None:
                raise UndecidedError from error
            raise
        # A refusal is no proof either: an earlier, unanswered request of this call may be what moved the version.
        except (RetryableError, PreconditionFailedError) as error:
            refused = undecided is None and isinstance(error, PreconditionFailedError)
            undecided = error
            # Sent again at once, it would be refused again, and soon be given up.
            if isinstance(error, RetryableError) and error.pause:
                await asyncio.sleep(error.pause)
        except OutcomeUnknownError as error:
            # Even where the bytes are read back, that proves nothing: the disk has not confirmed them, and a crash may
            # still undo the write.
            undecided, unconfirmed = error, True
        except CheckpointError as error:
            # The store refuses this request for good, but an earlier one may still land.
            if undecided is not None:
                raise UndecidedError from error
            raise
        try:
            found = await find_object(store, path, limit)
        except CorruptionError:
            raise
        except CheckpointError as error:
            # The root has other keys by now, and a first request that was refused is dead.
            if refused and isinstance(error, InvalidStateError):
                raise
            # Whatever else a read fails with is not raised as it is: the caller would take it for a failure, begin
            # another attempt, and the swap could land after all (SPEC.md, "Only a changed version proves a request
            # dead").
            raise UndecidedError from error
        # The same bytes are written over themselves, on the version that they have now, until the disk confirms them.
        if unconfirmed and found is not None and found.data == data:
            expected = found.version
        elif (None if found is None else found.version) != expected:
            return found
    # Nothing was proven, so a request may still be under way. To call this a failure would let the caller go on to an
    # attempt that does not know of it.
    raise UndecidedError from undecided


async def swap_or_explain(store: Store, path: str, data: bytes, expected: str | None, limit: int, unknown: str) -> bool:
    """Swap `data` in, and return whether that took effect.

    It did not where another writer's object is there. Raises `IllegalArgumentError` for more than the `limit` bytes
    that readers accept. Raises `OutcomeUnknownError` with the message `unknown` where nothing proves it, and what
    `swap_until_decided` raises else.
    """
    if len(data) > limit:
        raise IllegalArgumentError(
            f"{store.url}/{path}: would have {len(data)} bytes, and at most {limit} can be read, so it stays as it is: "
            "remove some of its entries first; if none can be removed, as in a list of signers, export the state to a "
            "new root"
        )
    try:
        found = await swap_until_decided(store, path, data, expected, limit)
    except UndecidedError as error:
        raise OutcomeUnknownError(unknown) from error.__cause__
    return found is not None and found.data == data
