"""Prove that a store keeps conditions on writes, of one and of several writers.

Several writers write at the same time. The proof is made once, when a root is created. `checkpointer doctor` makes a
longer one.
"""

import asyncio
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark_checkpointer.errors import CheckpointError, RetryableError, StoreRefusedError
from pyspark_checkpointer.storage.base import PROBE, UNFENCED, ObjectExistsError, PreconditionFailedError, Store
from pyspark_checkpointer.storage.compare_and_swap import MAX_SENDS, PATIENCE, pause_before
from pyspark_checkpointer.storage.contest import WRITERS, hold_contest, swap_patiently
from pyspark_checkpointer.storage.registry import Reach
from pyspark_checkpointer.storage.url import parse

ATTEMPTS = MAX_SENDS
"""The number of attempts at the proof, if the store does not answer: an outage is waited for as by a commit."""

# One object, which all writers create and then swap: 32 requests, in about the time of four. A hundred rounds take
# 1,600 requests and some seconds, on Google Cloud nearly a minute. They are for `checkpointer doctor`.
_ROUNDS = 2
"""Rounds of the contest of writers when a root is created."""


async def probe(store: Store) -> None:
    """Write, swap and delete objects of fresh random names under the root.

    On a server that others reach too, several writers then swap at the same time. A folder and the memory of this
    process have locks of this library, and no server that could be wrong.

    Nothing is proven, and nothing written, where the store was opened with `fencing="none"`.

    Raises:
        StoreRefusedError: The store accepts what its conditions forbid, refuses what they allow, or shows a write late.
    """
    if not store.fencing:
        return
    paths: list[str] = []
    started = time.monotonic()
    try:
        # A swap is one attempt; under a new name the whole proof can be begun again.
        for attempt in range(1, ATTEMPTS + 1):
            paths.append(f"{PROBE}{secrets.token_hex(16)}")
            try:
                await _try_all(store, paths[-1])
                break
            except RetryableError as error:
                if attempt == ATTEMPTS or time.monotonic() - started > PATIENCE:
                    raise
                await asyncio.sleep(max(error.pause or 0.0, pause_before(attempt)))
    finally:
        # An object that stays behind has a name that nobody else uses, and does no harm. The result of the proof
        # counts more.
        with suppress(CheckpointError):
            await store.delete(paths)


async def _try_all(store: Store, path: str) -> None:
    """Try the conditions alone and, on a server, among several writers."""
    await try_conditions(store, path)
    if parse(store.url).kind.reach is Reach.CLOUD:
        await _try_writers(store)


async def _try_writers(store: Store) -> None:
    """Let several writers swap the same objects at the same time."""
    problem = (await hold_contest([store] * WRITERS, PROBE, _ROUNDS)).problem
    if problem is not None:
        raise _refused(store, f"{problem}, with {WRITERS} writers at the same time")


async def try_conditions(store: Store, path: str) -> None:
    """Try each condition that commits rest on, one after the other.

    They are tried at a path that nobody else uses. Raises `StoreRefusedError` for the first one that the store does not
    keep.
    """
    # Each write has other bytes: a version may be a hash of the content, and equal bytes would then have equal
    # versions.
    first = await swap_patiently(store, path, b"1", None)
    with _must_raise(PreconditionFailedError, store, "created an object that exists"):
        await swap_patiently(store, path, b"2", None, must_win=False)
    with _must_raise(ObjectExistsError, store, "wrote over an object that exists"):
        await store.put(path, b"3")
    try:
        second = await swap_patiently(store, path, b"4", first)
    except PreconditionFailedError:
        raise _refused(store, "refused a swap on the version that it had just given") from None
    with _must_raise(PreconditionFailedError, store, "swapped on a version that is gone"):
        await swap_patiently(store, path, b"5", first, must_win=False)
    # Some servers show a write late. A writer who reads back what became of its swap would then judge it wrongly.
    blob = await store.get(path)
    if (blob.data, blob.version) != (b"4", second):
        raise _refused(store, "gave back another object than the one last written")


@contextmanager
def _must_raise(expected: type[CheckpointError], store: Store, found: str) -> Iterator[None]:
    """Raise `StoreRefusedError` unless the body raises `expected`.

    The error says what was found.
    """
    try:
        yield
    except expected:
        return
    raise _refused(store, found)


def _refused(store: Store, found: str) -> StoreRefusedError:
    return StoreRefusedError(
        f"{store.url}: this store does not keep conditions on writes as a commit needs them (it {found}), so two "
        f"writers could overwrite each other; use a store that does, or accept the risk with {UNFENCED}"
    )
