"""Proof that a store keeps conditions on writes.

It is taken once, when a root is created.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark_checkpointer.errors import CheckpointError, RetryableError, StoreRefusedError
from pyspark_checkpointer.storage.base import UNFENCED, ObjectExistsError, PreconditionFailedError, Store

ATTEMPTS = 3
"""The number of attempts at the proof, if the store does not answer."""


async def probe(store: Store) -> None:
    """Write, swap and delete an object of a fresh random name under the root.

    Nothing is proven, and nothing written, where the store was opened with `fencing="none"`.

    Raises:
        StoreRefusedError: The store accepts what its conditions forbid.
    """
    if not store.fencing:
        return
    for attempt in range(ATTEMPTS):
        path = f"_probe-{secrets.token_hex(16)}"
        try:
            await _try_conditions(store, path)
        except RetryableError:
            # A swap is one attempt; under a new name the whole proof can be begun again.
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return
        finally:
            # An object that stays behind has a name that nobody else uses, and does no harm. The result of the proof
            # counts more.
            with suppress(CheckpointError):
                await store.delete([path])


async def _try_conditions(store: Store, path: str) -> None:
    """Try each condition that commits rest on, at a path that nobody else uses."""
    # Each write has other bytes: a version may be a hash of the content, and equal bytes would then have equal
    # versions.
    first = await store.compare_and_swap(path, b"1", None)
    with _must_raise(PreconditionFailedError, store, "created an object that exists"):
        await store.compare_and_swap(path, b"2", None)
    with _must_raise(ObjectExistsError, store, "wrote over an object that exists"):
        await store.put(path, b"3")
    try:
        second = await store.compare_and_swap(path, b"4", first)
    except PreconditionFailedError:
        raise _refused(store, "refused a swap on the version that it had just given") from None
    with _must_raise(PreconditionFailedError, store, "swapped on a version that is gone"):
        await store.compare_and_swap(path, b"5", first)
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
        f"{store.url}: this store ignores conditions on writes (it {found}), so two writers could "
        f"overwrite each other; use a store that honours them, or accept the risk with {UNFENCED}"
    )
