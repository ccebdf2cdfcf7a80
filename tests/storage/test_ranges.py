"""Several ranges of one object: every store returns the same bytes, in few requests."""

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpointer.errors import DependencyError
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import ranges as ranges_module
from pyspark_checkpointer.storage.base import ObjectNotFoundError, Range, Store
from pyspark_checkpointer.storage.ranges import get_ranges

DATA = bytes(n % 251 for n in range(3000))


class OneByOne:
    """A store that has no request for several ranges, and counts those for one."""

    reads_ranges = False

    def __init__(self) -> None:
        self.asked: list[Range] = []

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        self.asked.append((offset, length))
        return DATA[offset : offset + length]


def read(store: Any, wanted: list[Range]) -> tuple[list[bytes], int]:
    return run_sync(get_ranges(store, "a", wanted))


RANGES = st.lists(st.tuples(st.integers(0, 3200), st.integers(0, 400)), max_size=12)


@given(RANGES, st.integers(0, 300), st.integers(1, 2000))
def test_ranges_are_read_together(wanted: list[Range], gap: int, most: int) -> None:
    store = OneByOne()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges_module, "MAX_GAP_BYTES", gap)
        patch.setattr(ranges_module, "MAX_SPAN_BYTES", most)
        found, size = read(store, wanted)
    assert found == [DATA[start : start + length] for start, length in wanted]
    assert size == sum(len(DATA[start : start + length]) for start, length in store.asked)
    assert len(store.asked) <= len({part for part in wanted if part[1]})
    assert all(length <= max(most, 400) for _, length in store.asked)


def test_near_ranges_are_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges_module, "MAX_GAP_BYTES", 10)
    store = OneByOne()
    assert read(store, [(50, 5), (0, 20), (30, 5), (70, 1)])[1] == 35 + 5 + 1
    assert store.asked == [(0, 35), (50, 5), (70, 1)]


def test_every_store_reads_ranges(store: Store) -> None:
    wanted = [(0, 10), (2990, 20), (5, 0), (100, 1000), (100, 1), (5000, 5)]
    run_sync(store.put("a", DATA))
    assert read(store, wanted)[0] == [DATA[start : start + length] for start, length in wanted]
    with pytest.raises(ObjectNotFoundError):
        run_sync(get_ranges(store, "b", wanted))
    assert read(store, []) == ([], 0)


def test_after_an_error_nothing_more_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges_module, "MAX_GAP_BYTES", 0)

    class Failing(OneByOne):
        ended = 0

        async def get_range(self, path: str, offset: int, length: int) -> bytes:
            if offset == 20:
                raise DependencyError("the second one")
            try:
                await asyncio.sleep(60)
            finally:
                self.ended += 1
            return b""

    async def work(store: Failing) -> None:
        with pytest.raises(DependencyError, match="the second one"):
            await get_ranges(cast(Any, store), "a", [(0, 1), (20, 1), (40, 1)])
        await asyncio.sleep(0)
        assert store.ended == 2

    asyncio.run(work(Failing()))
