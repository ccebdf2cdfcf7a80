"""Stores in forked children, and at the end of a process."""

from collections.abc import Callable

import pytest

from pyspark_checkpointer.runtime import run_sync
from tests.programs import run_python
from tests.storage.conftest import Place


def test_a_last_save_from_an_exit_handler(place_of: Callable[[str], Place]) -> None:
    place = place_of("local")
    program = f"""if True:
        import atexit
        from pyspark_checkpointer.runtime import run_sync
        from pyspark_checkpointer.storage import open_store
        store = open_store({place.url!r})
        atexit.register(lambda: run_sync(store.put("last", b"1")))
        run_sync(store.put("first", b"1"))
    """
    assert run_python(program) == ""
    assert [entry.path for entry in run_sync(place.open().list(""))] == ["first", "last"]


FORK = """if True:
    import os, sys, threading, asyncio
    from pyspark_checkpointer import runtime
    from pyspark_checkpointer.storage import open_store
    store = open_store({url!r}, {options!r})
    async def all_threads():
        await asyncio.gather(*(runtime.in_thread(int) for _ in range(50)), *(runtime.on_cpu(int) for _ in range(50)))
        await asyncio.gather(*(store.put("a/%d-%d" % (os.getpid(), n), b"x") for n in range(20)))
    runtime.run_sync(all_threads())
    sys.stdout.flush()
    ends = [(end, used) for used in (True, False) for end in (os._exit, sys.exit, os._exit, sys.exit)]
    for end, used in ends:
        child = os.fork()
        if child == 0:
            if end is not sys.exit or used:
                runtime.run_sync(all_threads())
            end(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        runtime.run_sync(store.get("a/%d-0" % os.getpid()))
    print(len(runtime.run_sync(store.list("a/"))))
"""


@pytest.mark.parametrize("kind", ["local", "s3", "azure", "gcs", "databricks"])
def test_a_forked_child_works_and_ends(place_of: Callable[[str], Place], kind: str) -> None:
    """First in children that all use the store, then in some that do not."""
    place = place_of(kind)
    output = run_python(FORK.format(url=place.url, options=place.storage_options))
    assert output.split() == [str(20 * (1 + 4 + 2))]
