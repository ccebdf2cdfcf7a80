"""The state of another job in each batch: which of its checkpoints a batch reads is known before the batch begins."""

import gc
import random
import re
import uuid
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.local import LocalFileSystem
from pyspark.sql import DataFrame

from pyspark_checkpointer import Checkpointer, KeyedState, RetentionPolicy
from pyspark_checkpointer.errors import (
    CheckpointNotFoundError,
    DependencyError,
    IllegalArgumentError,
    InvalidStateError,
    OperatorNotFoundError,
    RetiredError,
    StoreNotFoundError,
)
from pyspark_checkpointer.manifests.model import Job, Operator
from pyspark_checkpointer.spark import OtherState, State, stateful
from pyspark_checkpointer.spark.batch_attempt import BatchAttempt
from pyspark_checkpointer.spark.other_state import MAX_CLIENTS
from pyspark_checkpointer.table.schema_evolution import first_schema
from pyspark_checkpointer.table.version import TableVersion
from tests.proof.plain_spark import PlainFrame, new_state, plain_spark
from tests.spark.conftest import Job as SparkJob
from tests.spark.tables import rows


class Jobs:
    """Two roots in memory: `source` counts its checkpoints in a map, and `reader` reads them."""

    def __init__(self) -> None:
        self.source = Checkpointer(f"memory://{uuid.uuid4().hex}")
        self.reader = Checkpointer(f"memory://{uuid.uuid4().hex}")
        self.number = 0
        self.batch = -1

    def move(self) -> int:
        """One more checkpoint of the source."""
        self.number += 1
        with self.source.begin(epoch=self.number) as checkpoint:
            checkpoint.save("m", KeyedState({"n": self.number}))
        return self.number

    def begin(self) -> State:
        self.reader = self.reader.copy()
        return new_state(self.reader, self.reader.restore(), self.batch + 1)

    def read(self, **options: Any) -> int:
        """A batch that reads the source and is committed."""
        state = self.begin()
        found: int = state.other(self.source.root, **options).map("m")["n"]
        self.commit(state)
        return found

    def commit(self, state: State) -> None:
        state._attempt.commit()
        self.batch += 1

    @property
    def position(self) -> dict[str, str]:
        restored = self.reader.copy().restore()
        assert restored is not None
        found = restored.positions[f"checkpointer:{self.source.root}"]
        assert isinstance(found, dict)
        return found  # type: ignore[return-value]

    def epochs(self) -> tuple[int, int]:
        """The epochs of what the last batch read, and of what the next one reads."""
        read, following = (self.source.copy().restore(self.position[name]) for name in ("read", "next"))
        assert read is not None
        assert following is not None
        assert read.epoch is not None
        assert following.epoch is not None
        return read.epoch, following.epoch


@pytest.fixture
def jobs() -> Jobs:
    jobs = Jobs()
    jobs.move()
    return jobs


def test_a_batch_reads_what_the_checkpoint_below_it_recorded(jobs: Jobs) -> None:
    state = jobs.begin()
    other = state.other(jobs.source.root)
    jobs.move()
    assert (other.map("m"), other.epoch, state.other(jobs.source.root).id) == ({"n": 1}, 1, other.id)
    jobs.move()
    jobs.commit(state)
    assert jobs.epochs() == (1, 3)
    jobs.move()
    assert jobs.read() == 3
    assert jobs.epochs() == (3, 4)


def test_a_repeated_batch_reads_the_same_although_the_other_job_went_on(jobs: Jobs) -> None:
    """At each place of the callback a batch dies, and others before it: all repetitions read one checkpoint."""
    jobs.read()
    for _ in range(3):
        seen = []
        for dies in ("before", "after the read", "in the commit", "never"):
            jobs.move()
            state = jobs.begin()
            if dies == "before":
                state._attempt.abort()
                continue
            seen.append(state.other(jobs.source.root).map("m")["n"])
            jobs.move()
            if dies == "in the commit":
                state._attempt.others.record()  # then the process is killed: the checkpoint was never written
                continue
            if dies == "after the read":
                state._attempt.abort()
                continue
            jobs.commit(state)
        assert len(set(seen)) == 1
        assert len(seen) == 3


def test_random_histories_against_a_list_of_what_was_recorded() -> None:
    for seed in range(60):
        draw, jobs = random.Random(seed), Jobs()
        newest, due = jobs.move(), None
        read: list[int] = []
        recorded: list[int] = []  # by batch: what the next one reads
        for _ in range(12):
            step = draw.choice(["move", "move", "batch", "batch", "die", "skip", "rollback"])
            if step == "move":
                newest = jobs.move()
            elif step == "rollback" and recorded:
                back = draw.randrange(len(recorded))
                jobs.reader = jobs.reader.copy()
                jobs.reader.rollback(to=f"epoch={back}")
                recorded, read = recorded[: back + 1], read[: back + 1]
                jobs.batch, due = back, recorded[-1]
            elif step == "skip" and recorded:  # a batch that does not ask leaves what is recorded
                jobs.commit(jobs.begin())
                recorded.append(recorded[-1])
                read.append(read[-1])
            else:
                state = jobs.begin()
                found = state.other(jobs.source.root).map("m")["n"]
                assert found == (newest if due is None else due), seed
                newest = jobs.move() if draw.random() < 0.5 else newest
                if step == "die":
                    state._attempt.abort()
                    continue
                jobs.commit(state)
                due = newest
                recorded.append(due)
                read.append(found)
                assert jobs.epochs() == (found, newest), seed


def test_a_rewound_batch_reads_the_same_again(jobs: Jobs) -> None:
    first = []
    for _ in range(4):
        first.append(jobs.read())
        jobs.move()
    jobs.reader = jobs.reader.copy()
    jobs.reader.rollback(to="epoch=0")
    jobs.batch, again = 0, [first[0]]
    for _ in range(3):
        again.append(jobs.read())
    assert again[1] == first[1]  # as recorded by the checkpoint that the rewind went to
    assert again[2] == jobs.number  # and the newest from then on


def test_the_first_batch_can_begin_with_a_savepoint(jobs: Jobs) -> None:
    jobs.source.savepoint("start")
    jobs.move()
    for _ in range(2):  # it dies, and the other job goes on
        state = jobs.begin()
        assert state.other(jobs.source.root, start="savepoint=start").epoch == 1
        state._attempt.abort()
        jobs.move()
    assert jobs.read(start="savepoint=start") == 1
    assert jobs.read(start="savepoint=start") == jobs.number  # only the first one


def test_a_checkpoint_that_was_retired_is_refused_by_name_and_can_be_passed_over(jobs: Jobs) -> None:
    jobs.read()
    jobs.move()
    jobs.move()
    jobs.source.clean(RetentionPolicy(keep_last=1, grace=timedelta(0)))
    state = jobs.begin()
    pinned = jobs.position["next"]
    with pytest.raises(RetiredError, match=rf"{jobs.source.root}: {pinned} is not live any more.*on_retired='newest'"):
        state.other(jobs.source.root)
    state._attempt.abort()
    assert jobs.read(on_retired="newest") == jobs.number
    assert jobs.read() == jobs.number


def test_a_batch_is_committed_where_the_other_root_is_gone_at_its_end(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    state = jobs.begin()
    client = state.other(jobs.source.root)._client

    def gone() -> None:
        raise DependencyError("the network is down")

    monkeypatch.setattr(client, "read_latest", gone)
    jobs.move()
    jobs.commit(state)
    assert "reads" in caplog.text
    assert "the network is down" in caplog.text
    assert jobs.epochs() == (1, 1)
    assert jobs.read() == 1


def test_what_is_not_there_is_refused(jobs: Jobs) -> None:
    cases: list[tuple[type[Exception], str, Callable[[State], object]]] = [
        (IllegalArgumentError, "is the root of this job", lambda s: s.other(jobs.reader.root)),
        (StoreNotFoundError, "no checkpoint was committed", lambda s: s.other(f"memory://{uuid.uuid4().hex}")),
        (CheckpointNotFoundError, "epoch", lambda s: s.other(jobs.source.root, start="epoch=77")),
        (IllegalArgumentError, "expected 'error' or 'newest'", lambda s: s.other(jobs.source.root, on_retired="x")),  # type: ignore[arg-type]
        (OperatorNotFoundError, r"map 'k': .* has m", lambda s: s.other(jobs.source.root).map("k")),
        (OperatorNotFoundError, "'k'.*has m", lambda s: s.other(jobs.source.root).table("k")),
    ]
    for error, message, call in cases:
        state = jobs.begin()
        with pytest.raises(error, match=message):
            call(state)
        with pytest.raises(InvalidStateError, match="a state call failed"):  # also where the callback swallows it
            state._attempt.commit()
        state._attempt.abort()
    state = jobs.begin()
    state.positions[f"checkpointer:{jobs.source.root}"] = "mine"
    with pytest.raises(InvalidStateError, match=r"state\.positions\.pop"):
        state.other(jobs.source.root)


@pytest.mark.parametrize(
    ("is_first", "options"), [(False, {}), (False, {"start": "savepoint=s"}), (True, {"start": "savepoint=s"})]
)
@pytest.mark.parametrize("kind", ["map", "table"])
def test_what_only_a_newer_checkpoint_has_is_read_from_it_after_one_line(
    jobs: Jobs, kind: str, is_first: bool, options: dict[str, Any]
) -> None:
    """The other job got a map or table after the checkpoint that this batch has to read."""
    jobs.source.savepoint("s")
    old = jobs.source.list_checkpoints()[-1]
    if not is_first:
        jobs.read(**options)
    with jobs.source.begin() as checkpoint:
        if kind == "map":
            checkpoint.save("extra", KeyedState({"n": 7}))
        else:
            checkpoint.attempt.put_operator("extra", empty_table())
    newest = jobs.source.list_checkpoints()[-1]
    for _ in range(2):  # and again at each restart
        state = jobs.begin()
        with pytest.raises(OperatorNotFoundError) as caught:
            getattr(state.other(jobs.source.root, **options), kind)("extra")
        state._attempt.abort()
    said = str(caught.value)
    assert f"{newest}, the newest checkpoint, has it, and this batch has to read {old}" in said
    (line,) = re.findall(r"Set (state\.positions.*) before state\.other\(…\)", said)
    state = jobs.begin()
    exec(line, {"state": state})
    other = state.other(jobs.source.root, **options)
    assert (other.id, "extra" in other.operators) == (newest, True)
    jobs.commit(state)
    assert "extra" in jobs.begin().other(jobs.source.root, **options).operators
    with pytest.raises(OperatorNotFoundError) as caught:
        getattr(jobs.begin().other(jobs.source.root), kind)("nowhere")
    assert "newest" not in str(caught.value)


def test_a_root_without_conditional_writes_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Files(LocalFileSystem):
        protocol = "without-conditions"

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return super()._strip_protocol(path.removeprefix("without-conditions://"))

    fsspec.register_implementation(Files.protocol, Files, clobber=True)
    source, run = Checkpointer(f"{Files.protocol}://{tmp_path}/source", fencing="none"), Run()
    with source.begin(epoch=1) as checkpoint:
        checkpoint.save("m", KeyedState({"n": 1}))
    for _ in range(3):
        (other,) = run.read(source.root, fencing="none")
        assert (other.epoch, other.operators) == (1, ["m"])
    assert caplog.text.count(f"{source.root}: fencing is off") == 1
    with pytest.raises(IllegalArgumentError, match='fencing="none"'):
        run.read(source.root)


def test_it_cannot_be_used_after_its_batch(jobs: Jobs) -> None:
    state = jobs.begin()
    other = state.other(jobs.source.root)
    jobs.commit(state)
    with pytest.raises(InvalidStateError, match="has ended"):
        other.map("m")


def test_a_table_of_another_job(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(7)
    with plain_spark(draw):
        monkeypatch.setattr("pyspark_checkpointer.spark.other_state.scan", _plain_scan)
        jobs.source = jobs.source.copy()
        state = new_state(jobs.source, jobs.source.restore(), 2)
        state.table("t", ["k"], num_partitions=2).upsert(PlainFrame(draw, [pa.table({"k": [1], "v": [2]})]))  # type: ignore[arg-type]
        state._attempt.commit()
        reader = jobs.begin()
        version = reader.other(jobs.source.root).table("t")
        assert version == ["k", "v"]


class CountingKey:
    """A key service that counts what it opens, and may be away."""

    provider = "counting"
    key = ""

    def __init__(self) -> None:
        self.opened = 0
        self.is_away = False

    def wrap(self, data: bytes) -> bytes:
        return data

    def unwrap(self, wrapped: bytes) -> bytes:
        if self.is_away:
            raise DependencyError("the key service is away")
        self.opened += 1
        return wrapped


class Run:
    """Batches of one run that read other roots."""

    def __init__(self) -> None:
        self.state = Jobs().begin()

    def read(self, *roots: str, **options: Any) -> list[OtherState]:
        """Read all roots in one more batch, which is committed."""
        run = self.state._attempt.run
        job = Job("query", "run", (run.last_job.batch_id if run.last_job else 0) + 1)
        run.allow_changes()
        state = State(self.state._spark, BatchAttempt(run, job, run.client.begin_batch(job.batch_id, job)))
        found = [state.other(root, **options) for root in roots]
        state._attempt.commit()
        return found


def made_source(number: int = 1, **options: Any) -> Checkpointer:
    source = Checkpointer(f"memory://{uuid.uuid4().hex}", **options)
    with source.begin(epoch=number) as checkpoint:
        checkpoint.save("m", KeyedState({"n": number}))
    return source


def test_the_key_service_of_another_root_is_asked_once_in_a_run() -> None:
    source, key, run = made_source(encryption=(made := CountingKey())), CountingKey(), Run()
    assert made.opened <= 1
    for _ in range(2):
        run.read(source.root, encryption=key)
        with source.begin(epoch=2) as checkpoint:
            checkpoint.save("m", KeyedState({"n": 2}))
    assert key.opened == 1
    key.is_away = True
    (other,) = run.read(source.root, encryption=key)
    assert other.epoch == 2
    run.state._attempt.run.end()
    with pytest.raises(DependencyError, match="the key service is away"):
        Run().read(source.root, encryption=key)


def test_a_root_that_got_another_data_key_is_read_within_the_run() -> None:
    source, key, run = made_source(encryption=CountingKey()), CountingKey(), Run()
    run.read(source.root, encryption=key)
    source.reencrypt(CountingKey())  # of the same name, as an alias of a key service has it
    (other,) = run.read(source.root, encryption=key)
    assert (other.epoch, key.opened) == (1, 2)


def test_other_options_get_another_client() -> None:
    source, run = made_source(), Run()
    options: dict[str, Any] = {"client_kwargs": {"hosts": ["one"]}}

    def client() -> Checkpointer:
        return run.read(source.root, storage_options=options)[0]._client

    first = client()
    assert client() is first
    options["client_kwargs"]["hosts"][0] = "two"  # the caller goes on to change what was given
    second = client()
    assert second is not first
    assert second._config.storage_options == options
    assert client() is second
    (third,) = run.read(source.root)
    assert third._client not in (first, second)


def test_a_run_lets_its_clients_go() -> None:
    run = Run()
    seen = [weakref.ref(run.read(made_source(n).root)[0]._client) for n in range(MAX_CLIENTS + 3)]
    gc.collect()
    assert [one() is not None for one in seen] == [False] * 3 + [True] * MAX_CLIENTS
    run.state._attempt.run.end()
    gc.collect()
    assert [one for one in seen if one() is not None] == []


def empty_table() -> Operator:
    schema = first_schema("extra", [{"name": "k", "type": "long", "metadata": {}}], ["k"], {})
    return TableVersion("extra", schema, 2, {}).operator()


def _plain_scan(spark: Any, client: Any, checkpoint: Any, version: Any, columns: Any) -> Any:
    return version.schema.names


# ---- on Spark --------------------------------------------------------------------------------------------------------


def test_a_join_with_the_table_of_another_query(job: SparkJob, new_job: Callable[[str], SparkJob]) -> None:
    """The reading query fails in its second batch, and repeats it while the other query goes on."""
    source = new_job("source")
    seen: list[Any] = []
    failing = [False, True, False, False]

    @stateful(source.root)
    def count(batch: DataFrame, batch_id: int, state: State) -> None:
        state.table("totals", ["key"], num_partitions=2, combine={"n": "sum"}).upsert(
            batch.groupBy("key").count().withColumnRenamed("count", "n")
        )

    @stateful(job.root)
    def join(batch: DataFrame, batch_id: int, state: State) -> None:
        totals = state.other(source.root).table("totals")
        seen.append((batch_id, rows(batch.select("key").join(totals, "key"))))
        picked = state.other(source.root).table("totals", keys=batch.select("key").distinct(), columns=["key", "n"])
        assert rows(picked) == seen[-1][1]
        if failing.pop(0):
            raise ValueError("on purpose")

    def both(fed: str) -> None:
        source.feed(("a", 1))
        source.run(count)
        if fed:
            job.feed((fed, 1))

    both("a")
    job.run(join)
    both("a")
    with pytest.raises(Exception, match="on purpose"):
        job.run(join)
    both("")
    job.run(join)
    both("a")
    job.run(join)
    assert seen == [(0, [("a", 1)]), (1, [("a", 1)]), (1, [("a", 1)]), (2, [("a", 3)])]
