"""A small history of tables in which batches also crash and are repeated, and the job is rewound and forked."""

import random
import uuid
from dataclasses import dataclass, replace
from datetime import datetime

import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.admin.streaming.alignment import compare
from pyspark_checkpointer.manifests.model import CheckpointId
from tests.proof.plain_spark import plain_spark
from tests.proof.table_history import Figures, History, Shape, found
from tests.proof.table_model import TYPES, TableModel

SMALL = Shape(
    keys=(3, 5),
    partitions=(None, None, None, 1, 2),
    types={name: TYPES[name] for name in ("n", "top", "title", "x", "seen", "until")},
    few_reads=True,
    soon=True,
    opened=0.7,
    threads=0.05,
    steps=(1, 1, 2),
    after=(1, 2, 4),
    rules=0.4,
)

BATCHES = (2, 3, 4, 5)

Models = dict[str, TableModel]


@dataclass(frozen=True, slots=True)
class Moment:
    """What a checkpoint holds: the tables and the clock, and how far the job has read."""

    id: CheckpointId
    models: Models
    clock: datetime | None
    day: int


class Walk(History):
    """One root after the other, two tables, and what they should hold at each moment."""

    def __init__(self, seed: int, figures: Figures) -> None:
        super().__init__(seed, figures, f"memory://{uuid.uuid4().hex}", 5, shape=SMALL)
        self.moments: list[Moment] = []
        self.left: list[tuple[Checkpointer, Moment]] = []
        """Roots that the job has left for a fork of them, with what they held then."""

    def limits(self, patch: pytest.MonkeyPatch) -> None:
        """Change what large histories change in few walks only: a call for each row costs as much as one for all."""
        if self.draw.random() < 0.15:
            super().limits(patch)

    def run(self) -> None:
        """Run all batches, and compare what is there after each."""
        with pytest.MonkeyPatch.context() as patch:
            self.limits(patch)
            # What Spark does is drawn apart: a repeated batch has its rows in other tasks.
            with plain_spark(random.Random(self.draw.random())):
                for _ in range(self.draw.choice(BATCHES)):
                    self._step()
                    self.check()
                if self.moments and self.draw.random() < 0.3:
                    self._check_moment(self.client, self.draw.choice(self.moments))
                for client, moment in self.left:
                    self._check_moment(client, moment)

    def _step(self) -> None:
        match self.draw.choices(["batch", "crash", "rewind", "fork"], [10, 4, 3, 1])[0]:
            case "rewind" if self.moments:
                self._rewind(self.draw.choice(self.moments))
            case "fork" if self.moments:
                self._fork(self.draw.choice(self.moments))
            case "crash":
                self._crash()
            case _:
                self.day += self.draw.choice([-1, 0, 1, 2, 3, 5])
        self.batch(self._next())

    def batch(self, number: int) -> None:
        """Run and commit a batch. Spark may not hear of it, and ask for it again."""
        state = self.begin(number)
        self.commit(state)
        restored, job = self.client.copy().restore(), state._attempt.job
        assert restored is not None
        assert restored.job is not None
        assert compare(self.client.root, restored.job, replace(job, run_id="later")) == "repeated"
        self.moments.append(Moment(restored.id, copies(self.models), self.clock, self.day))
        self.figures["batches"] += 1

    def _next(self) -> int:
        """The batch that follows what is committed."""
        restored = self.client.copy().restore()
        return 0 if restored is None or restored.job is None else restored.job.batch_id + 1

    def _crash(self) -> None:
        """Do all work of a batch without its commit. The same batch comes again, at the same time."""
        drawn, before, clock = self.draw.getstate(), copies(self.models), self.clock
        state = self.begin(self._next())
        if self.draw.random() < 0.5:
            state._attempt.abort()
        self.client = self._open(self.client.root)
        self.draw.setstate(drawn)
        self.models, self.clock, self.hints = before, clock, {}
        self.figures["batches repeated"] += 1

    def _rewind(self, moment: Moment) -> None:
        """Go back. What the job reads then has the times of before, or later ones."""
        self.client.restore()
        self.client.rollback(moment.id)
        self.models, self.clock = copies(moment.models), moment.clock
        self.day = self.draw.choice([moment.day, self.day])
        self.check()
        self.figures["rewinds"] += 1

    def _fork(self, moment: Moment) -> None:
        """Go on in a copy. What was left stays as it is."""
        root = f"memory://{uuid.uuid4().hex}"
        copied = self.client.export(moment.id, root)
        self.left.append((self.client, self.moments[-1]))
        self.client = self._open(root)
        self.models, self.clock, self.day = copies(moment.models), moment.clock, moment.day
        self.moments = [replace(moment, id=copied)]
        self.check()
        self.figures["forks"] += 1

    def _check_moment(self, client: Checkpointer, moment: Moment) -> None:
        """Compare an older checkpoint with what it held."""
        restored = client.copy().restore(moment.id)
        assert restored is not None
        for name in set(restored.operators) & set(moment.models):
            model = moment.models[name]
            assert found(restored.table(name), model.columns) == model.found(model.columns)
        assert restored.clock == moment.clock


def copies(models: Models) -> Models:
    return {name: model.copy() for name, model in models.items()}
