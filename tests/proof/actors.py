"""Those who use a store in the proofs: the real code of writers, cleanups and readers, over simulated stores and hosts.

What a writer commits is what it restored and one token more, so that a lost or doubled commit shows in the content.
"""

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pyspark_checkpointer.admin import savepoints
from pyspark_checkpointer.admin.retention.delete import delete_checkpoint
from pyspark_checkpointer.admin.retention.garbage_collect import apply_plan, plan_retire_and_sweep, retire_and_sweep
from pyspark_checkpointer.admin.retention.policy import RetentionPolicy
from pyspark_checkpointer.admin.rollback import rollback
from pyspark_checkpointer.admin.update_latest import update_latest
from pyspark_checkpointer.checkpoint import commit, low_level, restore, save, save_bytes
from pyspark_checkpointer.checkpoint.prepared import Prepared
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import (
    CheckpointNotFoundError,
    ConflictError,
    FencedError,
    IllegalArgumentError,
    InvalidStateError,
    OutcomeUnknownError,
    RetiredError,
    RetryableError,
    SavepointNotFoundError,
)
from pyspark_checkpointer.manifests.model import DELTA, SNAPSHOT, CheckpointId, Manifest
from pyspark_checkpointer.storage.request_path import RetryingStore
from pyspark_checkpointer.testing.simulation import Simulation
from tests.proof.histories import History, Operation, digest, id_of
from tests.proof.judge import DEED, END, Deed, GarbageClassifier, Violation
from tests.proof.simulated_host import SimulatedHost
from tests.world import at_once

EXPECTED = (
    RetryableError,
    ConflictError,
    InvalidStateError,
    OutcomeUnknownError,
    CheckpointNotFoundError,
    SavepointNotFoundError,
)
"""What an actor may be told, and lives with. Damage of the store is never among it."""

Act = Callable[["Actor"], Coroutine[Any, Any, object]]
"""Something that an actor does."""


class Actor:
    """A process with a session of its own, and what it believes the state to be."""

    def __init__(self, stage: "Stage", name: str, number: int) -> None:
        self.stage, self.name, self.number = stage, name, number
        self._sessions = 0
        self.dice = random.Random(f"{stage.seed} {name}")
        self.host = SimulatedHost(stage.simulation, number, timedelta(seconds=self.dice.randint(-50, 50)))
        self.store = RetryingStore(stage.simulation.store_of(name), sleep=at_once)
        self.start()

    def start(self) -> None:
        """A session that knows nothing, and takes the store's word for its conditions."""
        self.session = Session(self.store, self.host, max_chain=3)
        self.session._probed = True
        self._sessions += 1
        self.content: bytes | None = None

    @contextmanager
    def deed(self, kind: str, name: str = "", **meant: Any) -> Iterator[Deed]:
        begun = len(self.stage.judge.versions) - 1
        deed = Deed(self.name, kind, name, self.session, self.host.name, self.host.drawn, begun, **meant)
        token = DEED.set(deed)
        try:
            yield deed
        finally:
            DEED.reset(token)

    def asks(self, kind: str, **fields: object) -> AbstractContextManager[Operation]:
        """Record an operation of this actor's session."""
        session = f"{self.number}.{self._sessions}"
        return self.stage.history.operation(self.number, kind, session=session, **fields)

    async def live(self, acts: Sequence[Act]) -> None:
        """Do some things, and get over what goes wrong."""
        for act in acts:
            try:
                await act(self)
            except EXPECTED as error:
                self.stage.told[type(error).__name__] += 1
                self.content = None
                if isinstance(error, FencedError):  # final for a session: whoever runs it starts it again
                    self.start()

    # ---- what writers do -----------------------------------------------------------------------------------------

    async def restore(self, *, promote: bool = True) -> None:
        """Begin anew with what is there; what is found prepared is promoted, or dropped."""
        with self.deed("restore") as deed, self.asks("restore") as asked:
            found = await restore.restore(self.session)
            asked.result = _seen(found)
            self.content = b""
            if found is not None and found.manifest is not None:
                self.content = b"".join(await found.partition("log", 0))
                asked.result["content"] = digest(self.content)
                self.stage.judge.restored(deed, found.manifest.id, self.content)
        if found is not None and found.prepared is not None:
            await self.decide(found.prepared, promote=promote)

    async def decide(self, prepared: Prepared, *, promote: bool) -> None:
        self.content = None
        kind = "promote" if promote else "abort"
        with self.deed(kind, str(prepared.id)), self.asks(kind, id=str(prepared.id)):
            if promote:
                await prepared.commit()
                self.stage.acknowledge(prepared.id)
            else:
                await prepared.abort()
                self.stage.refuse(prepared.id, "it was aborted")

    async def commit(self, *, whole: bool = False) -> None:
        if not await self._knows():
            return
        with self.deed("commit"):
            attempt = await self._begin(whole=whole)
            with self._attempts("commit", attempt.id):
                await self._attempt(attempt.id, commit.commit(attempt))

    async def prepare(self) -> Prepared | None:
        """What may or may not have been prepared is withdrawn: after that it never will be."""
        if not await self._knows():
            return None
        with self.deed("prepare"):
            attempt = await self._begin()
            recorded = self._attempts("prepare", attempt.id)
            self.content = None
            try:
                with recorded:
                    return await commit.prepare(attempt)
            except OutcomeUnknownError:
                with self.deed("abort", str(attempt.id)), self.asks("abort", id=str(attempt.id)):
                    await commit.abort(attempt)
                    self.stage.refuse(attempt.id, "it was withdrawn")
                raise

    async def commit_by_hand(self) -> None:
        """A commit through the verbs that write one object each."""
        if not await self._knows() or (base := await self.session.base()).manifest is None:
            return
        with self.deed("commit"):
            checkpoint = await self.session.new_id()
            content = (self.content or b"") + _token(checkpoint)
            artifact = await low_level.save_artifact(self.session, checkpoint, "log", 0, SNAPSHOT, content)
            log = replace(base.manifest.operators["log"], chains={0: (artifact,)})
            manifest = Manifest(checkpoint, parent=base.parent, operators={**base.manifest.operators, "log": log})
            await low_level.save_manifest(self.session, manifest)
            with self._attempts("commit", checkpoint):
                await self._attempt(checkpoint, update_latest(self.session, CheckpointSelector.parse(checkpoint)))

    async def roll_back(self, to: CheckpointId | str) -> None:
        where = {"target": str(to)} if isinstance(to, CheckpointId) else {"name": to}
        fresh = self.session.restored is None
        with self.deed("rollback", target=to), self.asks("rollback", fresh=fresh, **where) as asked:
            self.content = None
            made = await rollback(self.session, CheckpointSelector.parse(to))
            asked.result = {"id": str(made)}
            self.stage.acknowledge(made)

    async def _knows(self) -> bool:
        """Restore, unless it goes on from where it was. Not where a prepared checkpoint had to be decided first."""
        if self.content is None:
            await self.restore(promote=self.dice.random() < 0.5)
        return self.content is not None

    async def _begin(self, *, whole: bool = False) -> save.CheckpointAttempt:
        """An attempt that adds a token, as a delta or (`whole`, and now and then) with all there is."""
        attempt = await commit.begin(self.session, None, None, self.session.reports.meter())
        if whole or self.dice.random() < 0.3 or not self.content:
            await save_bytes.add(attempt, "log", 0, SNAPSHOT, (self.content or b"") + _token(attempt.id))
        else:
            await save_bytes.add(attempt, "log", 0, DELTA, _token(attempt.id))
        if self.dice.random() < 0.3 or not self.content:  # often what it was, so that the parent's is used again
            await save_bytes.add(attempt, "rest", 0, SNAPSHOT, self.dice.choice((b"x", b"y")))
        return attempt

    def _attempts(self, kind: str, checkpoint: CheckpointId) -> AbstractContextManager[Operation]:
        """Record an attempt at what this actor believes and a token more."""
        base = self.session.restored
        assert base is not None
        content = digest((self.content or b"") + _token(checkpoint))
        return self.asks(kind, parent=id_of(base.parent), id=str(checkpoint), content=content)

    async def _attempt(self, checkpoint: CheckpointId, commit: Awaitable[object]) -> None:
        """A commit of what was never prepared: what it is told is final, but for an unknown outcome."""
        try:
            await commit
        except (ConflictError, InvalidStateError, RetryableError) as error:
            self.stage.refuse(checkpoint, f"{type(error).__name__}: {error}")
            raise
        self.stage.acknowledge(checkpoint)
        self.content = (self.content or b"") + _token(checkpoint)

    # ---- what others do ------------------------------------------------------------------------------------------

    async def listed(self) -> list[CheckpointId]:
        with self.deed("list"), self.asks("list") as asked:
            found = await savepoints.list_checkpoints(self.session)
            asked.result = {"ids": [str(one) for one in found]}
            return found

    async def keep(self, name: str, which: CheckpointId | None) -> None:
        """Make a savepoint."""
        target = "" if which is None else str(which)
        with self.deed("savepoint", name, target=which) as deed:
            try:
                with self.asks("savepoint", name=name, target=target) as asked:
                    made = await savepoints.savepoint(self.session, name, CheckpointSelector.parse(which or "latest"))
                    asked.result = {"id": str(made.id)}
            except IllegalArgumentError as error:
                if "is taken" not in str(error):
                    raise
            else:
                self.stage.judge.done(deed)

    async def forget(self, name: str) -> None:
        """Delete a savepoint."""
        with self.deed("delete_savepoint", name) as deed, self.asks("delete_savepoint", name=name):
            await savepoints.delete_savepoint(self.session, name)
            self.stage.judge.done(deed)

    async def delete(self, which: CheckpointId) -> None:
        with self.deed("delete", str(which)), self.asks("delete", target=str(which)):
            await delete_checkpoint(self.session, CheckpointSelector.parse(which))

    async def clean(self, keep_last: int) -> None:
        with self.deed("clean", keep_last=keep_last), self.asks("clean", keep_last=keep_last) as asked:
            done = await retire_and_sweep(self.session, RetentionPolicy(keep_last=keep_last, grace=self.stage.grace))
            asked.result = {"ids": [str(one) for one in done.retired]}

    async def retain(self, keep_last: int) -> None:
        """A plan that was made before, and is applied when others have moved on."""
        with self.deed("retain", keep_last=keep_last):
            plan = await plan_retire_and_sweep(
                self.session, RetentionPolicy(keep_last=keep_last, grace=self.stage.grace)
            )
            with self.asks("retire", ids=[str(ref.id) for ref in plan.retired]):
                await apply_plan(self.session, plan)

    async def read(self) -> None:
        with self.deed("read") as deed, self.asks("restore") as asked:
            found = await restore.restore(self.session)
            asked.result = _seen(found)
            if found is None or found.manifest is None:
                self.stage.judge.found_nothing(deed)
                return
            try:
                content = b"".join(await found.partition("log", 0))
            except RetiredError:
                self.stage.lost_while_reading()
                raise
            asked.result["content"] = digest(content)
            self.stage.judge.restored(deed, found.manifest.id, content)

    async def look(self) -> None:
        """Read all that is there: every live checkpoint, and every savepoint by name."""
        for checkpoint in await self.listed():
            await self._load(checkpoint, None, target=str(checkpoint))
        with self.deed("list"), self.asks("savepoints") as asked:
            found = await savepoints.savepoints(self.session)
            asked.result = {"names": {one.name: str(one.id) for one in found}}
        for one in found:
            await self._load(None, one.name, name=one.name)

    async def _load(self, checkpoint: CheckpointId | None, savepoint: str | None, **which: str) -> None:
        with self.deed("list"), self.asks("load", **which) as asked:
            found = await restore.restore(self.session, CheckpointSelector.choose(checkpoint, None, savepoint))
            assert found is not None
            asked.result = {"content": digest(b"".join(await found.partition("log", 0)))}


def _seen(found: restore.CheckpointReader | None) -> dict[str, Any]:
    """Return what a restore showed, but for the content."""
    committed = "" if found is None or found.manifest is None else str(found.manifest.id)
    prepared = "" if found is None or found.prepared is None else str(found.prepared.id)
    return {"id": committed, "prepared": prepared}


def _token(checkpoint: CheckpointId) -> bytes:
    return str(checkpoint).encode() + END


class Stage:
    """A simulated store with a judge, and the actors on it. `grace` is that of every retention policy."""

    def __init__(self, simulation: Simulation, seed: int = 0, grace: timedelta = timedelta(0)) -> None:
        self.simulation, self.seed, self.grace = simulation, seed, grace
        self.judge = GarbageClassifier(simulation)
        self.history = History()
        self.told: Counter[str] = Counter()
        """What became of the deeds: acknowledged, refused, and the errors."""
        self.observant = False
        """Whether somebody reads all that is there before the end."""
        self._actors = 0

    def actor(self, name: str) -> Actor:
        """A new process. Its name gets a number, since the same may die and be started again."""
        self._actors += 1
        return Actor(self, f"{name} {self._actors}", self._actors)

    def play(self, actor: Actor, *acts: Act) -> None:
        """Do some things while all others stand still."""
        for act in acts:
            self.simulation.play(actor.name, act(actor))

    def acknowledge(self, checkpoint: CheckpointId) -> None:
        self.told["acknowledged"] += 1
        self.judge.acknowledged(checkpoint)

    def refuse(self, checkpoint: CheckpointId, why: str) -> None:
        self.told["refused"] += 1
        self.judge.refuse(checkpoint, why)

    def lost_while_reading(self) -> None:
        """A reader was told that what it reads is gone."""
        if self.grace:
            raise Violation("a reader lost its checkpoint within the grace period")

    def finish(self) -> None:
        """What is still under way lands. Then whoever comes last finds all in order, goes on, and cleans up."""
        for one in list(self.simulation.late):
            self.simulation.land(one)
        last = self.actor("last")
        self.grace = timedelta(0)
        before = self.told["acknowledged"]
        self.play(last, Actor.restore, Actor.commit)
        if self.observant:
            self.play(self.actor("observer"), Actor.look)
        self.play(last, Actor.commit, lambda actor: actor.clean(1))
        if self.told["acknowledged"] == before:
            raise Violation("nothing was committed in the end")
        left = self.judge.now.garbage(self.simulation.store.objects)
        if left:
            raise Violation(f"cleanup left behind: {sorted(left)}")
