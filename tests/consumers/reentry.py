"""Interrupt a call at each step that its thread takes, as a signal handler may, and let the handler use the object too.

Run as a program: a deadlock ends it, and with it nobody else.
"""

import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark_checkpointer.consumers.eventhub import CheckpointStore
from pyspark_checkpointer.consumers.journal import Journal
from pyspark_checkpointer.consumers.kinesis import ShardLeases, Worker
from pyspark_checkpointer.errors import InvalidStateError

AT = datetime(2026, 1, 1, tzinfo=UTC)
GROUP = {"fully_qualified_namespace": "n", "eventhub_name": "e", "consumer_group": "c"}
PATIENCE = 20.0


@dataclass
class Scene:
    """What is interrupted, by what, and what must be true afterwards of the two: whether each was taken."""

    work: Callable[[], object]
    handler: Callable[[], object]
    check: Callable[[bool, bool], None]


def journal_persist() -> Scene:
    """A handler shuts the journal down while another event is persisted."""
    url = f"memory://{uuid.uuid4().hex}/journal.yml"
    journal = Journal(url, 1000, 3600)

    def handler() -> None:
        journal.persist("handler", 1, AT)
        journal.shutdown()

    def check(work: bool, _: bool) -> None:
        expected = {"work", "handler"} if work else {"handler"}
        assert journal.states().keys() >= expected
        with Journal(url) as again:
            assert again.states().keys() == expected

    return Scene(lambda: journal.persist("work", 1, AT), handler, check)


def journal_same_log() -> Scene:
    """A handler persists a later event of the log whose event is being persisted: the later one stands."""
    url = f"memory://{uuid.uuid4().hex}/journal.yml"
    journal = Journal(url, 1000, 3600)

    def handler() -> None:
        journal.persist("log", 2, AT)
        assert journal.states()["log"].record_number == 2

    def check(_: bool, __: bool) -> None:
        assert journal.states()["log"].record_number == 2
        journal.shutdown()
        with Journal(url) as again:
            assert again.states()["log"].record_number == 2

    return Scene(lambda: journal.persist("log", 1, AT), handler, check)


def journal_flush() -> Scene:
    """A handler flushes while a flush waits."""
    url = f"memory://{uuid.uuid4().hex}/journal.yml"
    journal = Journal(url, 1000, 3600)
    journal.persist("work", 1, AT)

    def handler() -> None:
        journal.persist("handler", 1, AT)
        journal.flush()

    def check(_: bool, __: bool) -> None:
        journal.shutdown()
        with Journal(url) as again:
            assert again.states().keys() == {"work", "handler"}

    return Scene(journal.flush, handler, check)


def event_hub() -> Scene:
    """A handler closes the store while an update is taken."""
    url = f"memory://{uuid.uuid4().hex}"
    store = CheckpointStore(url, max_updates=100, interval=3600)

    def update(partition: str) -> None:
        store.update_checkpoint({**GROUP, "partition_id": partition, "sequence_number": 1, "offset": "1"})

    def handler() -> None:
        update("handler")
        store.close()

    def check(work: bool, _: bool) -> None:
        with CheckpointStore(url) as again:
            found = {one["partition_id"] for one in again.list_checkpoints(*GROUP.values())}
        assert found == ({"work", "handler"} if work else {"handler"})

    return Scene(lambda: update("work"), handler, check)


def kinesis(max_updates: int = 1) -> Scene:
    """A handler checkpoints while a checkpoint is under way, and closes."""
    url = f"memory://{uuid.uuid4().hex}"
    leases = ShardLeases(url, "app", max_updates=max_updates, interval=3600)
    leases.create(["s"])
    one = leases.take("s")
    assert one is not None
    leases.deliver(one, [{"SequenceNumber": "1"}, {"SequenceNumber": "2"}])

    def handler() -> None:
        one.checkpoint()
        leases.close()

    def check(_: bool, __: bool) -> None:
        with ShardLeases(url, "app") as others:
            two = others.take("s", force=True)
            assert two is not None
            assert two.position.sequence_number == "2"

    return Scene(lambda: one.checkpoint_by_sequence_number("1"), handler, check)


def kinesis_coalesced() -> Scene:
    return kinesis(100)


def worker_stop() -> Scene:
    """A handler stops a worker that waits for records: by what `run()` waits for."""
    worker = Worker(ShardLeases(f"memory://{uuid.uuid4().hex}", "app"), lambda *_: ([], False), Any)

    def check(_: bool, __: bool) -> None:
        assert worker._stop.is_set()

    return Scene(lambda: worker._stop.wait(0.01), worker.stop, check)


SCENES: dict[str, Callable[[], Scene]] = {
    make.__name__: make
    for make in (
        journal_persist,
        journal_same_log,
        journal_flush,
        event_hub,
        kinesis,
        kinesis_coalesced,
        worker_stop,
    )
}


def interrupt(scene: Scene, at: int) -> str | None:
    """Run a scene whose handler is called before step `at` of the work. Where that was; None where there is none."""
    steps, where = iter(range(1, at + 1)), [None]
    watch = threading.Timer(PATIENCE, lambda: give_up(at, where[0]))
    watch.daemon = True
    watch.start()

    def trace(frame: Any, event: str, _: object) -> Any:
        frame.f_trace_opcodes = True
        if event == "opcode" and next(steps, None) == at:
            where[0] = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
            scene.handler()
        return trace

    sys.settrace(trace)
    try:
        scene.work()
        taken = True
    except InvalidStateError:  # the handler had closed it
        taken = False
    finally:
        sys.settrace(None)
    if where[0] is not None:
        scene.check(taken, True)
    watch.cancel()
    return where[0]


def give_up(at: int, where: object) -> None:
    print(f"deadlock: interrupted at step {at}, in {where}", flush=True)
    os._exit(1)


def steps(make: Callable[[], Scene], every: int) -> Iterator[str]:
    """Interrupt at the first step, and then at one of so many."""
    interrupt(make(), 10**9)  # what is done for the first time takes locks of the interpreter's own
    at = 1
    while (where := interrupt(make(), at)) is not None:
        yield where
        at += every


if __name__ == "__main__":
    print(sum(1 for _ in steps(SCENES[sys.argv[1]], int(sys.argv[2]))))
