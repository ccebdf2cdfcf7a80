"""Proof that a store keeps the conditions on which commits rest, taken once when a root is created."""

import secrets
from contextlib import suppress

from pyspark_checkpointer.errors import CheckpointError, RetryableError, StoreRefusedError
from pyspark_checkpointer.storage.base import UNFENCED, ObjectExistsError, PreconditionFailedError, Store

ATTEMPTS = 3


async def probe(store: Store) -> None:
    """Write, swap and delete an object of a fresh random name under the root.

    Raises `StoreRefusedError` if the store accepts what its conditions forbid. Nothing to prove, and nothing
    written, where the store was opened with `fencing="none"`.
    """
    if not store.fencing:
        return
    for attempt in range(ATTEMPTS):
        path = f"_probe-{secrets.token_hex(16)}"
        try:
            await _try_conditions(store, path)
        except RetryableError:
            # A swap is one attempt; under a new name everything can be asked again.
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return
        finally:
            with suppress(CheckpointError):
                await store.delete([path])


async def _try_conditions(store: Store, path: str) -> None:
    first = await store.compare_and_swap(path, b"1", None)
    with _refusing(store, "created an object that exists", PreconditionFailedError):
        await store.compare_and_swap(path, b"2", None)
    with _refusing(store, "wrote over an object that exists", ObjectExistsError):
        await store.put(path, b"3")
    try:
        second = await store.compare_and_swap(path, b"4", first)
    except PreconditionFailedError:
        raise _refused(store, "refused a swap on the version that it had just given") from None
    with _refusing(store, "swapped on a version that is gone", PreconditionFailedError):
        await store.compare_and_swap(path, b"5", first)
    blob = await store.get(path)
    if (blob.data, blob.version) != (b"4", second):
        raise _refused(store, "gave back another object than the one last written")


class _refusing:  # noqa: N801 - read like a word: with _refusing(...)
    """The body must raise `expected`, or the store does not keep the condition."""

    def __init__(self, store: Store, found: str, expected: type[CheckpointError]) -> None:
        self._store, self._found, self._expected = store, found, expected

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if kind is None:
            raise _refused(self._store, self._found)
        return issubclass(kind, self._expected)


def _refused(store: Store, found: str) -> StoreRefusedError:
    return StoreRefusedError(
        f"{store.url}: this store does not keep conditions on writes (it {found}), so two writers could "
        f"overwrite each other; use a store that does, or accept that with {UNFENCED}"
    )
