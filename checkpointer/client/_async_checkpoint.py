"""Define the objects of the asynchronous checkpointer.

They are a checkpoint that is being made, a prepared one, and a restored one.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pyspark_checkpointer.checkpoint import commit, prepared, restore, save, save_bytes
from pyspark_checkpointer.checkpoint.attempt_state import UNDECIDED, AttemptState
from pyspark_checkpointer.checkpoint.key_history import KeyHistory
from pyspark_checkpointer.checkpoint.metering import Meter, blocking
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.client.base import as_bytes
from pyspark_checkpointer.client.key_history import key_history
from pyspark_checkpointer.client.restored import OperatorView, RestoredView
from pyspark_checkpointer.client.seam import AsyncFace, AsyncStart, doubting, tell_async, unless_given_up
from pyspark_checkpointer.errors import CheckpointError, ConflictError, InvalidStateError
from pyspark_checkpointer.keyed.state import KeyedState
from pyspark_checkpointer.manifests.model import DELTA, SNAPSHOT, Artifact, CheckpointId, Job, Json
from pyspark_checkpointer.runtime import bridge
from pyspark_checkpointer.runtime.not_picklable import NotPicklable

if TYPE_CHECKING:
    from pyspark_checkpointer.table.opening import Table


class AsyncCheckpoint(AsyncStart, NotPicklable):
    """A checkpoint that is being made: what `AsyncCheckpointer.begin` returns.

    Operators and partitions that you do not save or drop stay as they were in the parent, and cost nothing.

    Examples:
        The examples of the methods go on from here.

        >>> from pyspark_checkpointer import AsyncCheckpointer, KeyedState
        >>> ck = AsyncCheckpointer("state/orders")
        >>> cp = await ck.begin(epoch=1)
        >>> cp.epoch
        1
    """

    _instead = (
        "send its id and the AsyncCheckpointer, which is its configuration only; save_snapshot(id, …) or "
        "save_delta(id, …) there, and attach() here what they return"
    )

    def __init__(self, client: AsyncFace, epoch: int | None, job: Job | None, background: bool) -> None:
        self._client, self._session = client, client.session
        self._epoch = epoch
        self._job = job
        self._background = background
        self.meter = self._session.reports.meter()
        """Counts what the checkpoint costs. It is for other packages of this library."""
        self._begun: save.CheckpointAttempt | None = None
        self._is_beginning = False
        self._began_to_prepare = False
        """True once `prepare()` was called: the end of the block aborts what it did not return."""
        self._returned_prepared = False
        """True once `prepare()` returned: the caller alone decides from then on."""
        self._made()

    @blocking
    async def _begin(self) -> Self:
        if self._is_beginning:
            raise InvalidStateError("this checkpoint is being begun by another task: wait for that one")
        if self._begun is not None:
            return self._again()
        self._is_beginning = True
        try:
            # Not by `bridge`: it may raise the error of an earlier commit in the background.
            begun = commit.begin(self._session, self._epoch, self._job, self.meter)
            self._begun = await tell_async(self._session, begun)
        finally:
            self._is_beginning = False
        return self

    def _again(self) -> Self:
        """Return this checkpoint for a second use.

        Once it has ended, what that changed would go nowhere.
        """
        if self.attempt.state is not AttemptState.OPEN:
            raise InvalidStateError(f"{self.id}: this attempt {self.attempt.state.value}")
        return self

    @property
    def attempt(self) -> save.CheckpointAttempt:
        """The layer below, for other packages of this library."""
        if self._begun is None:
            raise InvalidStateError("this checkpoint was not begun: use `async with`, or await begin(…)")
        return self._begun

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._begun.id if self._begun else 'not begun'}, epoch {self.epoch})"

    @property
    def id(self) -> CheckpointId:
        """The id of this attempt. Every object that it writes carries it."""
        return self.attempt.id

    @property
    def epoch(self) -> int | None:
        """The epoch given to `begin`, such as Spark's batch id.

        If `begin` got none, it is the epoch of the parent.
        """
        return self._epoch if self._begun is None else self._begun.epoch

    @property
    def parent(self) -> "AsyncRestored | None":
        """The checkpoint below this one; None for the first."""
        reader = restore.parent_reader(self._client.session, self.attempt.base)
        return None if reader is None else AsyncRestored(reader)

    @property
    def positions(self) -> dict[str, Json]:
        """The source positions to record: a dict of JSON values that you may change.

        It begins as the parent's dict. A value has at most 250 levels of lists and dicts inside each other.
        """
        return self.attempt.positions

    @property
    def properties(self) -> dict[str, Json]:
        """Properties of your own to record: a dict of JSON values that you may change.

        It begins as the parent's dict. A value has at most 250 levels of lists and dicts inside each other.
        """
        return self.attempt.properties

    @property
    def watermark(self) -> Json:
        """The watermark of the job, a JSON value of at most 250 levels.

        It begins as the parent's.
        """
        return self.attempt.watermark

    @watermark.setter
    def watermark(self, value: Json) -> None:
        self.attempt.watermark = value

    @blocking
    async def snapshot(self, operator: str, partition: int, data: bytes) -> None:
        """Save the whole state of a partition, as bytes of your own format.

        Args:
            operator: The name of the operator.
            partition: The number of the partition, from 0.
            data: The bytes. Later changes to a buffer do not reach the store.

        Raises:
            IllegalArgumentError: The operator is a map or a table, or `data` is not bytes.
            InvalidStateError: This checkpoint was committed or aborted before.

        Examples:
            >>> await cp.snapshot("totals", 0, b"ann=1")
            >>> id = await cp.commit()
            >>> restored = await ck.restore()
            >>> await restored.operator("totals").partition(0)
            [b'ann=1']
        """
        await bridge(save_bytes.add(self.attempt, operator, partition, SNAPSHOT, as_bytes(data)))

    @blocking
    async def delta(self, operator: str, partition: int, data: bytes) -> None:
        """Save a change of a partition, as bytes of your own format.

        The change goes on top of the partition's snapshot and deltas.

        Args:
            operator: The name of the operator.
            partition: The number of the partition, from 0. It must have a snapshot.
            data: The bytes.

        Raises:
            IllegalArgumentError: The partition has no snapshot, or the operator is a map or a table.
            InvalidStateError: This checkpoint was committed or aborted before.

        Examples:
            >>> await cp.snapshot("totals", 0, b"ann=1")
            >>> id = await cp.commit()
            >>> async with ck.begin(epoch=2) as second:
            ...     await second.delta("totals", 0, b"ann+=2")
            >>> restored = await ck.restore()
            >>> await restored.operator("totals").partition(0)
            [b'ann=1', b'ann+=2']
        """
        await bridge(save_bytes.add(self.attempt, operator, partition, DELTA, as_bytes(data)))

    @blocking
    async def save(self, operator: str, state: KeyedState) -> None:
        """Save the changes of a keyed state.

        Everything is captured now: you may change the state again as soon as this returns. The bytes are written in the
        background, at the latest before the commit.

        Args:
            operator: The name of the operator.
            state: The keyed state. If it was saved under another name or on another root, all of it is written.

        Raises:
            IllegalArgumentError: A value cannot be stored. The message names its key and type.
            InvalidStateError: This checkpoint was committed or aborted before.

        Examples:
            >>> await cp.save("visits", KeyedState({"ann": 1}))
            >>> id = await cp.commit()
            >>> restored = await ck.restore()
            >>> (await restored.keyed("visits")).to_dict()
            {'ann': 1}
        """
        await bridge(self.attempt.save(operator, self.attempt.capture(operator, state)))

    @blocking
    async def attach(self, artifact: Artifact) -> None:
        """Add an artifact that was written under this id, on any machine.

        `save_snapshot` or `save_delta` of a checkpointer wrote it. One byte of it is read beside other work. If it is
        not in this store, as where the other machine has another folder at the same path, the commit is refused.

        Args:
            artifact: What that call returned.

        Raises:
            IllegalArgumentError: This is no artifact, or one that was written for another id.
            InvalidStateError: This checkpoint was committed or aborted before.

        Examples:
            >>> artifact = await ck.save_snapshot(cp.id, "totals", 0, b"ann=1")
            >>> await cp.attach(artifact)
            >>> id = await cp.commit()
        """
        await bridge(save_bytes.attach(self.attempt, artifact))

    def keep(self, operator: str, partition: int | None = None) -> None:
        """Confirm that an operator, or one partition, stays as it is.

        Args:
            operator: The name of the operator.
            partition: The number of the partition; by default the whole operator.

        Raises:
            IllegalArgumentError: The parent has no such operator or partition.
            InvalidStateError: This checkpoint was committed or aborted before.

        Examples:
            >>> await cp.snapshot("totals", 0, b"ann=1")
            >>> id = await cp.commit()
            >>> async with ck.begin(epoch=2) as second:
            ...     second.keep("totals")
            >>> (await ck.restore()).operators
            ['totals']
        """
        self.attempt.keep(operator, partition)

    def drop(self, operator: str, partition: int | None = None) -> None:
        """Leave an operator, or one partition, out from now on.

        It is neither in this checkpoint nor in those after it.

        Args:
            operator: The name of the operator.
            partition: The number of the partition; by default the whole operator.

        Raises:
            IllegalArgumentError: The parent has no such operator or partition.
            InvalidStateError: This checkpoint was committed or aborted before.

        Examples:
            >>> await cp.snapshot("totals", 0, b"ann=1")
            >>> id = await cp.commit()
            >>> async with ck.begin(epoch=2) as second:
            ...     second.drop("totals")
            >>> (await ck.restore()).operators
            []
        """
        self.attempt.drop(operator, partition)

    @blocking
    async def prepare(self) -> "AsyncPrepared":
        """Run the first of two phases.

        After this phase everything is durable and protected from cleanup, but not yet committed. Once this has
        returned, only you decide: the block of `begin()` neither commits nor aborts the checkpoint, also after an
        exception. If this fails or is interrupted, the end of the block aborts it, also if the block catches the error.

        Returns:
            The prepared checkpoint, to commit or abort; after a restart it is `restored.prepared`.

        Raises:
            FencedError: Another writer took over. This checkpointer can never commit again.
            InvalidStateError: It was committed or aborted before, or another prepared checkpoint waits for its second
                phase.
            OutcomeUnknownError: The swap was sent, and nothing proves whether it took effect. `restore()` tells.
            ConflictError: Another writer committed since this began. Restore, and begin again.
            IllegalArgumentError: `positions`, `properties` or `watermark` is no JSON, or nested too deeply.

        Examples:
            >>> await cp.snapshot("totals", 0, b"ann=1")
            >>> prepared = await cp.prepare()
            >>> await prepared.commit()
            >>> restored = await ck.restore()
            >>> restored.epoch
            1
        """
        self._began_to_prepare = True
        handle = AsyncPrepared(await bridge(commit.prepare(self.attempt)))
        # Last: what an interruption keeps from the caller is aborted at the end of the block.
        self._returned_prepared = True
        return handle

    @blocking
    async def commit(self) -> CheckpointId:
        """Commit now. For callers without an `async with` block.

        A commit whose caller was cancelled or interrupted may still take effect. If it did, the next call that writes
        asks for `restore()` first, which tells.

        Returns:
            The id of the checkpoint.

        Raises:
            FencedError: Another writer took over. This checkpointer can never commit again.
            InvalidStateError: It was committed or aborted before, or another prepared checkpoint waits for its second
                phase.
            OutcomeUnknownError: The swap was sent, and nothing proves whether it took effect. `restore()` tells.
            ConflictError: Another writer committed since this began. Restore, and begin again.
            IllegalArgumentError: `positions`, `properties` or `watermark` is no JSON, or nested too deeply.

        Examples:
            >>> await cp.snapshot("totals", 0, b"ann=1")
            >>> id = await cp.commit()
            >>> id == await ck.read_latest()
            True
        """
        with doubting(self.attempt.session.doubt_commit, partial(commit.commit, self.attempt)) as watched:
            await bridge(watched())
        return self.id

    async def abort(self) -> None:
        """Give up, leaving nothing visible.

        This does nothing once the commit has begun to swap the pointer. The abort of a prepared checkpoint takes over,
        as a commit does: a writer that owned the root before can never commit again.

        Raises:
            ConflictError: It was prepared, and another checkpoint was prepared since, or another writer took over.
                Restore.
            InvalidStateError: It was prepared, and is committed by now.
            FencedError: It was prepared, and another writer took over. This checkpointer can never commit again.
            OutcomeUnknownError: It was prepared, the swap was sent, and nothing proves whether it took effect.
                `restore()` tells.

        Examples:
            >>> await cp.snapshot("totals", 0, b"ann=1")
            >>> await cp.abort()
            >>> await ck.restore() is None
            True
        """
        await bridge(commit.abort(self.attempt))

    async def __aenter__(self) -> Self:
        return await self._begin() if self._begun is None else self._again()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            # Another system may have committed in trust of the prepared checkpoint.
            if not self._returned_prepared:
                await self._give_up(error)
        elif self._began_to_prepare and not self._returned_prepared:
            # The block has caught the error or the timeout of `prepare`. Nobody has what may be prepared. If another
            # writer took over, it can never be prepared, and the block has handled that.
            with suppress(ConflictError):
                await self.abort()
        # Not where the block has committed, prepared or aborted it itself.
        elif self.attempt.state in UNDECIDED:
            try:
                if self._background:
                    await self._commit_in_background()
                else:
                    await self.commit()
            except BaseException as failed:
                if self.attempt.state in UNDECIDED:  # it did not even begin
                    await self._give_up(failed)
                raise

    @blocking
    async def _commit_in_background(self) -> None:
        # Now, because the caller goes on and may change positions while the commit waits for its turn.
        self.attempt.freeze()
        session = self._client.session
        with doubting(session.doubt_commit, partial(commit.commit, self.attempt)) as watched:
            work = unless_given_up(self.attempt, watched)
            await tell_async(session, session.in_background(work, f"the commit of {self.id}"))

    async def _give_up(self, error: BaseException) -> None:
        self.attempt.is_given_up = True
        try:
            await self.abort()
        # The caller has to learn why the block failed. That the abort failed too only adds to it.
        except CheckpointError as second:
            error.add_note(f"aborting {self.id} failed too: {second}")


class AsyncPrepared(NotPicklable):
    """A checkpoint between the two phases.

    `AsyncCheckpoint.prepare` returns it, and `restored.prepared` is one. It stays prepared until you commit or abort
    it, also if the block in which it was prepared raises an error. A commit or an abort that failed may be tried again.

    Examples:
        >>> from pyspark_checkpointer import AsyncCheckpointer
        >>> ck = AsyncCheckpointer("state/two-phases")
        >>> cp = await ck.begin(epoch=1)
        >>> await cp.snapshot("totals", 0, b"ann=1")
        >>> prepared = await cp.prepare()
        >>> restored = await ck.restore()  # as after a restart
        >>> await restored.prepared.commit()
        >>> (await ck.read_latest()) == prepared.id
        True
    """

    _instead = "send the AsyncCheckpointer, which is its configuration only: restore().prepared is the same there"

    def __init__(self, core: prepared.Prepared) -> None:
        self._core = core

    @property
    def meter(self) -> Meter:
        """The meter that counts what the commit costs, for other packages of this library."""
        return self._core.meter

    @property
    def id(self) -> CheckpointId:
        """The id of the checkpoint."""
        return self._core.id

    @property
    def epoch(self) -> int | None:
        """The epoch of the checkpoint, such as Spark's batch id, or None."""
        return self._core.manifest.epoch

    @blocking
    async def commit(self) -> None:
        """Make it the committed checkpoint. Calling this again is no error.

        What this checkpointer restored while it was prepared is out of date then: it raises `InvalidStateError`. So
        does a save of its maps. If it takes effect after its caller was cancelled or interrupted, `begin` asks for
        `restore()` first.

        Raises:
            ConflictError: It is not prepared any more: somebody aborted or replaced it.
            InvalidStateError: This object aborted it before.
            FencedError: Another writer took over. This checkpointer can never commit again.
            OutcomeUnknownError: The swap was sent, and nothing proves whether it took effect. `restore()` tells.

        Examples:
            >>> cp = await ck.begin(epoch=2)
            >>> await cp.snapshot("totals", 0, b"ann=2")
            >>> second = await cp.prepare()
            >>> await second.commit()
            >>> await ck.read_latest() == second.id
            True
        """
        with doubting(self._core.session.doubt_commit, self._core.commit) as watched:
            await bridge(watched())

    async def abort(self) -> None:
        """Discard the prepared checkpoint.

        This takes over, as a commit does: a writer that owned the root before can never commit again.

        Raises:
            ConflictError: Another checkpoint was prepared since, or another writer took over. Restore.
            InvalidStateError: It is committed by now: use `rollback`.
            FencedError: Another writer took over. This checkpointer can never commit again.
            OutcomeUnknownError: The swap was sent, and nothing proves whether it took effect. `restore()` tells.

        Examples:
            >>> cp = await ck.begin(epoch=2)
            >>> await cp.snapshot("totals", 0, b"ann=2")
            >>> second = await cp.prepare()
            >>> await second.abort()
            >>> await ck.read_latest() == prepared.id
            True
        """
        await bridge(self._core.abort())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id})"


class AsyncRestored(RestoredView):
    """A restored checkpoint: what `AsyncCheckpointer.restore` returns.

    State is read, and verified, when you ask for it.

    Examples:
        The examples of the methods go on from here.

        >>> from pyspark_checkpointer import AsyncCheckpointer, KeyedState
        >>> ck = AsyncCheckpointer("state/visits")
        >>> async with ck.begin(epoch=1) as cp:
        ...     await cp.save("visits", KeyedState({"ann": 1}))
        ...     await cp.snapshot("model", 0, b"weights")
        >>> restored = await ck.restore()
        >>> restored.epoch, restored.operators
        (1, ['model', 'visits'])
    """

    @property
    def prepared(self) -> AsyncPrepared | None:
        """A checkpoint that was prepared and awaits its second phase, or None."""
        return None if self.reader.prepared is None else AsyncPrepared(self.reader.prepared)

    def operator(self, name: str) -> "AsyncRestoredOperator":
        """Return one operator, to read the bytes of its partitions. Reads nothing yet.

        Args:
            name: The name of the operator.

        Raises:
            OperatorNotFoundError: The checkpoint has no operator of this name. The message names those it has.

        Examples:
            >>> await restored.operator("model").partition(0)
            [b'weights']
        """
        return AsyncRestoredOperator(self.reader, name)

    async def keyed(self, name: str, partitions: int | None = None) -> KeyedState:
        """Return a keyed state as it was saved.

        All of it is read, verified and held in memory.

        Args:
            name: The name that it was saved under.
            partitions: The number of partitions to spread it over, from 1 to 131,072; by default the number that it was
                saved in. Another number makes the next save a full one.

        Raises:
            OperatorNotFoundError: The checkpoint has no operator of this name.
            IllegalArgumentError: The operator is a table, or bytes of your own.
            CorruptionError: An object is missing or damaged.

        Examples:
            >>> visits = await restored.keyed("visits")
            >>> visits["ann"]
            1
        """
        return await bridge(self.reader.keyed(name, partitions))

    async def table(
        self, name: str, columns: Sequence[str] | None = None, *, keys: "Sequence[Mapping[str, Any]] | None" = None
    ) -> "Table":
        """Read a table that Spark wrote, without Spark. Needs pyarrow (the extra `spark`).

        Args:
            name: The name of the table.
            columns: The columns to read; by default all.
            keys: Rows of key columns, such as `[{"user": "ann"}]`: only rows with these keys are returned, and only
                what may hold them is read.

        Returns:
            A pyarrow Table with each row once.

        Raises:
            OperatorNotFoundError: The checkpoint has no operator of this name.
            IllegalArgumentError: The operator is no table, or it has no such column.

        Examples:
            The query of the example of `State` wrote the table.

            >>> shop = await AsyncCheckpointer("state/shop").restore()
            >>> totals = await shop.table("totals", keys=[{"digit": 0}])
            >>> totals.to_pylist()
            [{'digit': 0, 'n': 5}]
        """
        from pyspark_checkpointer.table import opening  # pyarrow, only for those who use tables

        return await bridge(opening.read(self.reader, name, columns, keys))

    async def history(self, operator: str, key: Any, *, after: CheckpointId | str | None = None) -> KeyHistory:
        """Return what each checkpoint up to this one did to one key of a map or table.

        Needs no Spark. Only the partition of the key is read, and only of checkpoints that changed it. The history
        begins with the oldest checkpoint from which all are live up to this one: `since` of the result names it.

        Args:
            operator: The name of the map or table.
            key: The key of the map; of a table a dict of its key columns, or the value alone if there is one column.
            after: A checkpoint to begin after, in any form that `restore` takes; by default as far back as possible.

        Raises:
            OperatorNotFoundError: None of the checkpoints has an operator of this name.
            RetiredError: Retention has deleted a checkpoint after `after`.
            IllegalArgumentError: The operator has no keys, or others than this; or this checkpoint is older than
                `after`.
            CorruptionError: An object is missing or damaged.

        Examples:
            >>> async with ck.begin(epoch=2) as cp:
            ...     await cp.save("visits", KeyedState({"ann": 2}))
            >>> history = await (await ck.restore()).history("visits", "ann")
            >>> [(change.epoch, change.change, change.before, change.after) for change in history.changes]
            [(1, 'insert', None, 1), (2, 'update', 1, 2)]
            >>> history.is_complete
            True
        """
        start = None if after is None else CheckpointSelector.parse(after)
        return await bridge(key_history(self.reader, operator, key, start))


class AsyncRestoredOperator(OperatorView):
    """One operator of a restored checkpoint, for bytes of your own format.

    `restored.operator(name)` returns it.

    Examples:
        >>> from pyspark_checkpointer import AsyncCheckpointer
        >>> ck = AsyncCheckpointer("state/model")
        >>> async with ck.begin(epoch=1) as cp:
        ...     await cp.snapshot("model", 0, b"weights")
        ...     await cp.snapshot("model", 1, b"biases")
        >>> operator = (await ck.restore()).operator("model")
        >>> operator.partitions
        [0, 1]
        >>> await operator.read()
        {0: [b'weights'], 1: [b'biases']}
    """

    async def partition(self, partition: int) -> list[bytes]:
        """Return the snapshot of a partition, then its deltas, verified.

        Args:
            partition: The number of the partition.

        Raises:
            IllegalArgumentError: The partition has no state.
            CorruptionError: An object is missing or damaged.

        Examples:
            >>> await operator.partition(0)
            [b'weights']
        """
        return await bridge(self.reader.partition(self.name, partition))

    async def read(self, partitions: Iterable[int] | None = None) -> dict[int, list[bytes]]:
        """Return several partitions, or all, by number.

        They are read at once, and an object that they share is read once.

        Args:
            partitions: The numbers of the partitions; by default all that have state.

        Returns:
            For each number a snapshot, then its deltas.

        Raises:
            IllegalArgumentError: A partition has no state.
            CorruptionError: An object is missing or damaged.

        Examples:
            >>> await operator.read([1])
            {1: [b'biases']}
        """
        return await bridge(self.reader.read(self.name, partitions))
