"""A store in memory with a bit of everything, all that can be read of it, and bytes of it exchanged in place."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.checkpoint.restore import CheckpointReader
from pyspark_checkpointer.checkpoint.verification import Verification
from pyspark_checkpointer.client._sync_checkpoint import Restored
from pyspark_checkpointer.consumers.eventhub import CheckpointStore
from pyspark_checkpointer.consumers.inspect import read_consumers
from pyspark_checkpointer.errors import CheckpointError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.positions_json import Marker, encode_marker
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage.memory.store import MemoryStore
from tests.damage import fill
from tests.manifests.samples import AT
from tests.proof import seeds
from tests.table.tables import rows_in

GROUP = {"fully_qualified_namespace": "space", "eventhub_name": "hub", "consumer_group": "group"}


def read_all(snapshot: CheckpointReader) -> Any:
    """All that a checkpoint holds, read through every door there is."""
    restored = Restored(snapshot)
    tables = [restored.table("table"), restored.table("table", keys=[{"k": 1}])]
    return snapshot.manifest, run_sync(_stored(snapshot)), dict(restored.keyed("map")), list(map(rows_in, tables))


async def _stored(snapshot: CheckpointReader) -> dict[tuple[str, int], list[bytes]]:
    assert snapshot.manifest is not None
    chains = {(name, p) for name, operator in snapshot.manifest.operators.items() for p in operator.chains}
    return {key: await snapshot.partition(*key) for key in sorted(chains)}


class Whole:
    """Three checkpoints, one of them a savepoint, a prepared one, an attempt nobody committed, and positions."""

    def __init__(self) -> None:
        self.url = f"memory://{uuid.uuid4().hex}"
        client = self.client()
        self.ids = [fill(client, number) for number in range(3)]
        client.savepoint("kept", self.ids[0])
        client.save_snapshot(client.new_id(), "own", 0, b"an attempt that nobody committed")
        cp = client.begin(epoch=3)
        cp.snapshot("own", 0, b"prepared")
        cp.delta("chain", 0, b"prepared too")
        cp.prepare()
        self._objects = MemoryStore(self.url).objects
        self._keep_progress()
        self.readers = self._readers()
        self.before = {name: read() for name, read in self.readers.items()}

    def client(self) -> Checkpointer:
        return Checkpointer(self.url)

    def _keep_progress(self) -> None:
        with CheckpointStore(self.url) as store:
            store.claim_ownership([{**GROUP, "partition_id": str(n), "owner_id": "me"} for n in range(2)])
            store.update_checkpoint({**GROUP, "partition_id": "0", "sequence_number": 7, "offset": "120"})
        host, shards = (
            object_paths.group_folder("eventprocessorhost", "a", "b"),
            object_paths.group_folder("kinesis", "app"),
        )
        documents = {
            object_paths.position(host, "0"): seeds.position(seeds.EPH[0]),
            object_paths.store(host): encode_marker(Marker(AT), "n" * 32),
            object_paths.ownership(shards): seeds.ownership(),
            object_paths.position(shards, "shard-1"): seeds.position(dict(seeds.KINESIS[1]), "shard-1"),
        }
        for path, data in documents.items():
            run_sync(MemoryStore(self.url).put(path, data))

    # ---- what can be read ----------------------------------------------------------------------------------------

    def _readers(self) -> dict[str, Callable[[], Any]]:
        """Everything that a user may read of checkpoints, each by itself."""
        client = self.client
        return {
            "latest": lambda: self._restored(),
            **{f"checkpoint {i}": lambda i=i: self._restored(id=i) for i in self.ids[:-1]},
            "savepoint": lambda: self._restored(savepoint="kept"),
            "prepared": self._prepared,
            "lists": lambda: (client().list_checkpoints(), client().savepoints()),
        }

    def _restored(self, **which: Any) -> Any:
        restored = self.client().restore(**which)
        assert restored is not None
        return read_all(restored.reader)

    def _prepared(self) -> Any:
        client = self.client()
        restored = client.restore()
        assert restored is not None
        assert restored.prepared is not None
        return read_all(CheckpointReader(client.session, restored.prepared._core.manifest, None))

    def wrong(self) -> tuple[list[str], list[str]]:
        """What is read now as another value than before, and what is refused. Any other exception goes on."""
        others, refused = [], []
        for name, read in self.readers.items():
            try:
                if read() != self.before[name]:
                    others.append(name)
            except CheckpointError:
                refused.append(name)
        return others, refused

    def verify(self) -> Verification:
        return self.client().verify()

    def survey(self) -> Any:
        return run_sync(read_consumers(MemoryStore(self.url)))

    # ---- its bytes -----------------------------------------------------------------------------------------------

    def paths(self) -> list[str]:
        return sorted(self._objects)

    def read(self, path: str) -> bytes:
        return self._objects[path].data

    @contextmanager
    def holding(self, changed: dict[str, bytes]) -> Iterator[None]:
        """Other bytes for some objects, for a while."""
        before = {path: self._objects[path] for path in changed}
        self._objects.update({path: replace(before[path], data=data) for path, data in changed.items()})
        try:
            yield
        finally:
            self._objects.update(before)
