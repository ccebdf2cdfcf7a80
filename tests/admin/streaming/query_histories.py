"""Play random histories of a query: rewinds, undos, forks, purges, cleanups, crashes, starts.

Whatever happened, the end is one of two: the query goes on and has counted every record of its source exactly once; or
it refuses to, and the command that the refusal names brings it there. What Spark does with its files is a model
(`spark_model.py`); it purges old ones too, as Spark does.
"""

import random
import re
import shlex
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark_checkpointer import Checkpointer, RetentionPolicy
from pyspark_checkpointer.cli.app import checkpointer as command
from pyspark_checkpointer.errors import CheckpointError, NotFoundError
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.testing import Faults, injected
from pyspark_checkpointer.testing.faults import CrashError
from tests.admin.streaming.spark_model import Query

SPARK_REFUSES = "Spark does not start: {} is missing"
"""What Spark says where it lacks the offsets of its newest batch or of the one before. Where it kept very few files, an
interrupted rewind may leave that, and the same rewind called again mends it."""

COMMAND = re.compile(r"`(checkpointer [^`]+)`")

HELP = 5
"""Commands that are followed, one after the other, before a refusal counts as a dead end."""


class History:
    """One history. `figures` counts what happened; `told` lists it, to explain a failure."""

    def __init__(self, seed: int, folder: Path, figures: Counter[str]) -> None:
        self.rng = random.Random(seed)
        self.figures = figures
        self.told: list[str] = []
        self._folder = folder
        self.query = self._place("query")
        self.query.create()
        self.read: dict[CheckpointId, int] = {}
        """Up to which record the state of a checkpoint has read."""
        self.deleted: set[str | None] = set()
        """Names of savepoints that somebody deleted, those of rewinds among them."""
        self.interrupted: Callable[[], object] | None = None
        """The last rewind or undo that died, until another came to its end or the query went on."""

    def _place(self, name: str) -> Query:
        unique = uuid.uuid4().hex
        return Query(f"memory://{name}-{unique}", str(self._folder / f"{name}-{unique}"))

    def play(self, steps: int) -> None:
        for _ in range(3):
            self.batch(self.query)
        verbs = [
            *[self.run] * 6,
            self.dies_before_its_commit,
            self.dies_between_the_commits,
            *[self.rewind] * 3,
            *[self.undo] * 2,
            self.rollback,
            self.purge,
            self.clean,
            self.savepoint,
            self.delete_savepoint,
            self.fork,
            *[self.crash] * 3,
        ]
        for _ in range(steps):
            self.rng.choice(verbs)()
        self.check(self.query)

    # ---- what happens ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        for _ in range(self.rng.randrange(1, 4)):
            self.batch(self.query)

    def batch(self, query: Query) -> None:
        """Start one batch. Where it is refused, follow the advice now or later."""
        batch = self.start(query, step=self.rng.choice([1, 3, 10, 17]), finish=self.rng.random() < 0.9)
        self.tell(f"batch {batch}")
        if batch is None:
            self.figures["refusals"] += 1
            if self.rng.random() < 0.5:
                self.follow(query)
        elif query is self.query:
            self.interrupted = None
            self.note(query)

    def start(self, query: Query, **how: Any) -> int | None:
        """Run a batch. None where it was refused, by the sink or by Spark itself before it called the sink."""
        try:
            return query.run(**how)
        except FileNotFoundError as error:
            query.refusal = SPARK_REFUSES.format(error.filename)
            return None

    def note(self, query: Query) -> None:
        latest = Checkpointer(query.root).read_latest()
        if latest is not None:
            self.read[latest] = query.read

    def dies_before_its_commit(self) -> None:
        with suppress(FileNotFoundError):
            self.query.begin(step=self.rng.choice([1, 5, 10]))
        self.tell("planned a batch and died")

    def dies_between_the_commits(self) -> None:
        self.tell(f"died after the commit of {self.query.run(finish=False)}")
        self.note(self.query)

    def rewind(self) -> None:
        ids = Checkpointer(self.query.root).list_checkpoints()
        to = self.rng.choice(ids)
        done = self.attempt(f"rewind to {to}", lambda: Checkpointer(self.query.root).rewind(self.query.spark, to=to))
        if done is not None:
            self.interrupted = None
            self.figures["rewinds"] += 1
            if to in self.read:
                assert self.query.read == self.read[to], "the state that was asked for"
            if done.savepoint is not None and done.changes:
                kept = {savepoint.name for savepoint in Checkpointer(self.query.root).savepoints()}
                assert done.savepoint in kept | self.deleted, "what was left is kept"
            self.note(self.query)
            assert not Checkpointer(self.query.root).rewind(self.query.spark, to=to).changes, "done is done"

    def undo(self) -> None:
        done = self.attempt("undo", lambda: Checkpointer(self.query.root).undo_rewind(self.query.spark))
        if done is not None:
            self.interrupted = None
            self.figures["undone"] += done.changes
            if done.to in self.read:
                assert self.query.read == self.read[done.to], "the state that was left"
            self.note(self.query)

    def rollback(self) -> None:
        """Roll back the state alone, as somebody who does not know about rewind."""
        if self.rng.random() < 0.5:
            return
        to = self.rng.choice(Checkpointer(self.query.root).list_checkpoints())
        if self.attempt(f"rollback to {to}", lambda: Checkpointer(self.query.root).rollback(to)) is not None:
            self.figures["rollbacks"] += 1
            self.note(self.query)

    def purge(self) -> None:
        """Delete old files of each log, as Spark does after a batch."""
        keep = self.rng.choice([2, 3, 5])
        newest = max(self.query.numbers("offsets"), default=0)
        for folder in ("offsets", "commits"):
            for number in self.query.numbers(folder):
                if number <= newest - keep:
                    path = self.query.spark / folder / str(number)
                    path.unlink()
                    path.with_name(f".{number}.crc").unlink(missing_ok=True)
                    path.with_name(f"{number}.crc").unlink(missing_ok=True)
                    self.figures["purged files"] += 1
        self.tell(f"Spark purged all but {keep}")

    def clean(self) -> None:
        policy = RetentionPolicy(keep_last=self.rng.choice([1, 2, 4]), grace=timedelta(0))
        self.attempt("clean", lambda: Checkpointer(self.query.root).clean(policy))
        self.figures["cleanups"] += 1

    def savepoint(self) -> None:
        name = f"kept-{len(self.told)}"
        self.attempt(f"savepoint {name}", lambda: Checkpointer(self.query.root).savepoint(name))

    def delete_savepoint(self) -> None:
        names = [savepoint.name for savepoint in Checkpointer(self.query.root).savepoints()]
        if names:
            name = self.rng.choice(names)
            self.deleted.add(name)
            self.attempt(f"delete {name}", lambda: Checkpointer(self.query.root).delete_savepoint(name))

    def fork(self) -> None:
        """Fork the query. The copy goes on by itself; the first query does not notice."""
        what = self.rng.choice(Checkpointer(self.query.root).list_checkpoints())
        copy = self._place("copy")
        before = (self.query.files(), self.query.read)

        def work() -> object:
            client = Checkpointer(self.query.root)
            return client.fork(what, copy.root, copy.spark, spark_checkpoint=self.query.spark)

        if self.rng.random() < 0.4:
            self.dying("fork", work)
        if self.attempt(f"fork {what}", work) is None:
            return
        self.figures["forks"] += 1
        assert (self.query.files(), self.query.read) == before
        if what in self.read:
            assert copy.read == self.read[what]
        for _ in range(2):
            self.batch(copy)
        self.check(copy)
        assert (self.query.files(), self.query.read) == before

    def crash(self) -> None:
        """Let one of the others die at some request; then repeat it, or go on."""
        ids = Checkpointer(self.query.root).list_checkpoints()
        to = self.rng.choice(ids)
        policy = RetentionPolicy(keep_last=self.rng.choice([1, 3]), grace=timedelta(0))
        works: dict[str, Callable[[], object]] = {
            "rewind": lambda: Checkpointer(self.query.root).rewind(self.query.spark, to=to),
            "undo": lambda: Checkpointer(self.query.root).undo_rewind(self.query.spark),
            "clean": lambda: Checkpointer(self.query.root).clean(policy),
            "rollback": lambda: Checkpointer(self.query.root).rollback(to),
            "batch": self.query.run,
        }
        name = self.rng.choice(["rewind", "rewind", "undo", "undo", "clean", "rollback", "batch", "batch"])
        if self.dying(name, works[name]) and name in ("rewind", "undo"):
            self.interrupted = works[name]
        if self.rng.random() < 0.3:
            self.attempt(f"{name} again", works[name])

    # ---- how it is done --------------------------------------------------------------------------------------------

    def dying(self, name: str, work: Callable[[], object]) -> bool:
        """Run work that is to die. Return whether it did: it may have come to its end, or have been refused, before."""
        faults = Faults()
        number, after = self.rng.randrange(1, 45), self.rng.random() < 0.5
        faults.crash(number, after=after)
        try:
            with injected(faults):
                self.attempt(f"{name}, to die {'after' if after else 'before'} request {number}", work)
        except CrashError:
            self.figures["crashes"] += 1
            self.tell(f"{name} died")
            return True
        return False

    def attempt(self, name: str, work: Callable[[], Any]) -> Any:
        """Return the result of the work; None where it was refused."""
        self.tell(name)
        try:
            return work()
        except CheckpointError as error:
            self.tell(f"refused: {error}")
            self.figures["refusals"] += 1
        except FileNotFoundError as error:  # Spark's own: a file that it wants is not there
            self.tell(f"Spark does not start: {error}")
        return None

    def tell(self, what: str) -> None:
        self.told.append(what)

    # ---- how it has to end -----------------------------------------------------------------------------------------

    def follow(self, query: Query) -> None:
        """Run the commands that refusals name, until the query goes on."""
        for _ in range(HELP):
            refusal = query.refusal
            if refusal is not None and refusal.startswith(SPARK_REFUSES.partition("{")[0]):
                assert query is self.query, "a copy is never half made"
                assert self.interrupted is not None, f"{refusal}, and no rewind was interrupted"
                self.attempt("what was interrupted, again", self.interrupted)
                self.figures["interrupted rewinds without which Spark refuses"] += 1
                if self.start(query) is not None:
                    self.note(query)
                    return
                continue
            commands = COMMAND.findall(refusal or "")
            assert commands, f"a refusal without a command: {refusal}"
            if not any(self.type(typed) for typed in commands):  # in their order, until one works
                break
            self.figures["commands that helped"] += 1
            if self.start(query) is not None:
                if query is self.query:
                    self.note(query)
                return
        raise AssertionError(f"a dead end: {query.refusal}")

    def type(self, typed: str) -> bool:
        """Run a command, and return whether it succeeded."""
        from click.testing import CliRunner

        words = shlex.split(typed)[1:]
        if words[0] == "rewind":
            words.append("--yes")
        done = CliRunner().invoke(command, words)
        self.tell(f"{typed}: status {done.exit_code} {done.output.strip()[-300:]}")
        return done.exit_code == 0

    def check(self, query: Query) -> None:
        """Run some more batches, and check that every record was counted once."""
        for _ in range(4):
            query.refusal = None
            if self.start(query) is None:
                self.follow(query)
        end = query.offset(query.numbers("offsets")[-1])
        assert query.read == end
        assert query.total == end * (end - 1) // 2, "every record once"
        self.figures["histories that went on"] += 1


def play(seed: int, folder: Path, figures: Counter[str], steps: int = 22) -> None:
    history = History(seed, folder, figures)
    try:
        history.play(steps)
    except NotFoundError as error:
        raise AssertionError(str(error)) from error
    except BaseException:
        print(f"history {seed}:", *history.told, sep="\n  ")
        raise
