"""The client's own processors share partitions through our store, one is killed, and nothing is skipped."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer.consumers.eventhub import CheckpointStore
from tests.consumers.eventhub import processors
from tests.servers import Server

GROUP = ("orders.servicebus.windows.net", processors.HUB, processors.GROUP)
PATIENCE = 80.0
PARTITIONS = 8


@dataclass
class Run:
    """Processes that consume a hub, and what they noted."""

    children: list[int]
    folder: Path
    store: CheckpointStore

    def lines(self) -> list[list[str]]:
        log = self.folder / "log"
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []

    def readers(self) -> dict[str, set[int]]:
        """Which of the living processes read each partition."""
        found: dict[str, set[int]] = {str(n): set() for n in range(PARTITIONS)}
        for kind, partition, *rest in self.lines():
            if kind == "open":
                found[partition].add(int(rest[0]))
            elif kind == "close":
                found[partition].discard(int(rest[0]))
        return {partition: pids & set(self.children) for partition, pids in found.items()}

    def owners(self) -> dict[str, int | None]:
        """The process that the store names as the owner of each partition."""
        process = {words[3]: int(words[2]) for words in self.lines() if words[0] == "open"}
        return {row["partition_id"]: process.get(row["owner_id"]) for row in self.store.list_ownership(*GROUP)}

    def is_even(self) -> bool:
        """Each partition has one reader, which is its owner, and everybody has as many as the others, but for one."""
        readers = self.readers()
        if any(len(pids) != 1 for pids in readers.values()):
            return False
        shares = Counter(pid for pids in readers.values() for pid in pids)
        least, most = PARTITIONS // len(self.children), -(-PARTITIONS // len(self.children))
        even = set(shares) == set(self.children) and all(least <= share <= most for share in shares.values())
        return even and self.owners() == {partition: pid for partition, [pid] in readers.items()}

    def furthest(self) -> dict[str, int]:
        """The last event that the applications got of each partition; none may be skipped on the way there."""
        found = dict.fromkeys(map(str, range(PARTITIONS)), -1)
        for words in self.lines():
            if words[0] == "event":
                partition, number = words[1], int(words[2])
                assert number <= found[partition] + 1, f"partition {partition}: {number} after {found[partition]}"
                found[partition] = max(found[partition], number)
        return found

    def kill(self) -> int:
        """Kill a process that reads something, without warning."""
        victim = next(pid for pid in self.children if any(pid in pids for pids in self.readers().values()))
        os.kill(victim, signal.SIGKILL)
        self.children.remove(victim)
        return victim

    def end(self) -> int:
        """Let the events of each partition end a little after the furthest position. Returns where."""
        end = max(self.positions().values(), default=0) + 10  # Nothing is checkpointed if the kill came early.
        whole = self.folder / "end.new"
        whole.write_text(str(end))
        whole.rename(self.folder / "end")
        return end

    def positions(self) -> dict[str, int]:
        return {row["partition_id"]: row["sequence_number"] for row in self.store.list_checkpoints(*GROUP)}


@pytest.fixture
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    started: list[tuple[subprocess.Popen[str], list[int]]] = []

    def begin(face: str, kind: str, processes: int, **store: Any) -> Run:
        url, options = str(tmp_path / "root"), {}
        if kind != "local":
            server: Server = request.getfixturevalue(f"{kind}_server")
            url, options = f"{server.url}/{uuid.uuid4().hex}", dict(server.storage_options)
        settings = {
            "face": face,
            "url": url,
            "options": options,
            "store": store,
            "partitions": PARTITIONS,
            "end": str(tmp_path / "end"),
            "processes": processes,
            "log": str(tmp_path / "log"),
        }
        program = [sys.executable, "-m", "tests.consumers.eventhub.processors", json.dumps(settings)]
        process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        children = [int(word) for word in process.stdout.readline().split()]
        started.append((process, [*children]))
        return Run(children, tmp_path, CheckpointStore(url, options))

    yield begin
    for process, children in started:
        for child in children:
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait(30)


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("face", "kind", "processes"),
    [
        pytest.param("sync", "local", 2, marks=pytest.mark.prove),
        ("sync", "local", 8),
        pytest.param("sync", "s3", 8, marks=pytest.mark.prove),
        pytest.param("sync", "azure", 8, marks=pytest.mark.prove),
        ("aio", "local", 8),
        ("aio", "azure", 2),
    ],
)
def test_one_of_several_processors_is_killed(
    start: Callable[..., Run], face: str, kind: str, processes: int, effort: Callable[[int, int], int]
) -> None:
    if (face, kind) != ("sync", "local"):  # eight that compete for one object keep its server busy, and no more
        processes = min(processes, effort(4, processes))
    run = start(face, kind, processes)
    until(lambda: len({words[-1] for words in run.lines() if words[0] == "event"}) == processes)
    run.kill()
    end = run.end()
    until(lambda: set(run.furthest().values()) == {end - 1})
    until(run.is_even)
    # An owner that has lost a partition and does not know yet may set it back: by the contract an update overwrites.
    assert all(position <= end - 1 for position in run.positions().values())
