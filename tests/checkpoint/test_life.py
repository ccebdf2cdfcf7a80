"""A whole life of a job, on every kind of store."""

from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.errors import CheckpointNotFoundError, ConflictError, FencedError, InvalidStateError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.storage import open_store
from tests.conftest import Root
from tests.world import contents, got, put

COMMITS = 30


def client_of(root: Root, **options: Any) -> Checkpointer:
    return Checkpointer(root.url, root.storage_options or None, **options)


def test_a_whole_life(any_root: Root) -> None:
    writer = client_of(any_root, max_chain=4)
    assert writer.restore() is None
    state, model = KeyedState(partitions=2), {}
    log: list[bytes] = []
    ids = []
    for number in range(COMMITS):
        state[number % 7] = model[number % 7] = [number, {"n": number}]
        state.setdefault("count", []).append(number)
        model.setdefault("count", []).append(number)
        with writer.begin(epoch=number) as cp:
            cp.save("map", state)
            for partition in range(3):
                cp.snapshot("packed", partition, b"%d %d" % (partition, number))
            cp.snapshot("log", 0, b"0") if not log else cp.delta("log", 0, b"%d" % number)
            log.append(b"%d" % number)
            cp.positions["topic"] = {"0": number}
        ids.append(cp.id)
    assert writer.list_checkpoints() == ids

    reader = client_of(any_root)
    restored = reader.restore()
    assert (restored.id, restored.epoch, restored.positions) == (ids[-1], COMMITS - 1, {"topic": {"0": COMMITS - 1}})
    assert dict(restored.keyed("map")) == dict(restored.keyed("map", 5)) == model
    assert restored.operator("log").partition(0) == log
    assert [restored.operator("packed").partition(p) for p in range(3)] == [[b"%d 29" % p] for p in range(3)]
    assert reader.restore(epoch=11).operator("log").partition(0) == log[:12]

    # A command line keeps, deletes and lists, and the job goes on.
    tool = client_of(any_root)
    tool.savepoint("before", ids[9])
    tool.delete_checkpoint(ids[20])
    tool.delete_checkpoint(ids[0])
    with pytest.raises(InvalidStateError, match="savepoint"):
        tool.delete_checkpoint(ids[9])
    with pytest.raises(CheckpointNotFoundError):
        tool.restore(ids[20])
    left = [checkpoint for checkpoint in ids if checkpoint not in (ids[0], ids[20])]
    assert tool.list_checkpoints() == left
    put(writer, b"on it goes")

    # The savepoint becomes the state again.
    rolled = writer.rollback("before")
    restored = client_of(any_root).restore()
    assert (restored.id, restored.epoch) == (rolled, 9)
    assert restored.operator("log").partition(0) == log[:10]
    again = restored.keyed("map")
    assert again["count"] == list(range(10))
    again["count"].append("again")
    with writer.begin(epoch=10) as cp:
        cp.save("map", again)

    # Two phases, with a crash between them.
    cp = writer.begin(epoch=11)
    cp.snapshot("packed", 0, b"prepared")
    unaware = cp.prepare()
    heir = client_of(any_root)
    prepared = heir.restore().prepared
    assert (prepared.id, prepared.epoch) == (cp.id, 11)
    prepared.commit()
    unaware.commit()  # it is committed, whoever did it
    with pytest.raises(FencedError):
        put(writer, b"zombie")
    assert contents(client_of(any_root).restore())["packed"][0] == [b"prepared"]
    cp = heir.begin(epoch=12)
    cp.snapshot("packed", 0, b"dropped")
    cp.prepare().abort()

    # A third that restored in time is told that it is late.
    late = client_of(any_root)
    late.restore()
    put(heir, b"last")
    with pytest.raises(ConflictError):
        put(late, b"lost update")
    assert got(late.restore()) == b"last"
    put(late, b"the end")

    tool.delete_savepoint("before")
    assert tool.savepoints() == []
    reader = client_of(any_root)
    for checkpoint in reader.list_checkpoints()[::6]:
        restored = reader.restore(checkpoint)
        restored.keyed("map")
        assert restored.operator("packed").partition(1)
    for client in (writer, tool, heir, late, reader):
        client.close()


def test_deleting_all_but_the_newest_leaves_what_it_names(any_root: Root) -> None:
    client = client_of(any_root)
    for number in range(5):
        with client.begin() as cp:
            cp.snapshot("op", number, b"%d" % number)
    for checkpoint in client.list_checkpoints()[:-1]:
        client.delete_checkpoint(checkpoint)
    assert client.list_checkpoints() == [cp.id]
    assert contents(client_of(any_root).restore()) == {"op": {p: [b"%d" % p] for p in range(5)}}
    from pyspark_checkpointer.runtime import run_sync

    store = open_store(any_root.url, any_root.storage_options or None)
    paths = {entry.path for entry in run_sync(store.list(""))}
    assert {path for path in paths if path.startswith("manifests/")} == {object_paths.manifest(cp.id)}
    assert len([path for path in paths if path.startswith("artifacts/")]) == 5
    run_sync(store.close())
    client.close()
