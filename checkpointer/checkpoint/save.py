"""Save the content of one attempt at a checkpoint.

Most of the content is written while the caller continues.

    records → encode → compress → digest → PUT artifacts (parallel, the last beside the manifest) → swap _latest

`restore.py` is the mirror image; `commit.py` begins and ends an attempt.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace

from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.attempt_state import UNDECIDED, AttemptState
from pyspark_checkpointer.checkpoint.chains import ChainPlan, OperatorChange
from pyspark_checkpointer.checkpoint.encode import ToEncode, submit
from pyspark_checkpointer.checkpoint.fencing import Base
from pyspark_checkpointer.checkpoint.metering import Meter
from pyspark_checkpointer.checkpoint.migrated import how_to_keep
from pyspark_checkpointer.checkpoint.prepared import Prepared
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.checkpoint.upload import ChainSlot, Uploader
from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.keyed.changes import ChangeSet
from pyspark_checkpointer.keyed.state import KeyedState
from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.codecs import Codec
from pyspark_checkpointer.manifests.json_text import check_json_fields
from pyspark_checkpointer.manifests.map_expiry import micros
from pyspark_checkpointer.manifests.model import (
    SNAPSHOT,
    Clock,
    Job,
    Json,
    Manifest,
    Operator,
)
from pyspark_checkpointer.runtime import forks


class CheckpointAttempt:
    """One attempt at a checkpoint on top of `base`.

    Everything it writes carries its id. `state` says what the attempt allows: `AttemptState` shows the transitions.
    """

    def __init__(self, session: Session, base: Base, epoch: int | None, job: Job | None, meter: Meter) -> None:
        parent = base.manifest
        self.id = session.draw_id(base.head.sequence)
        self.session = session
        self.base = base
        self.epoch = epoch
        self.job = job
        self.meter = meter
        self.state = AttemptState.OPEN
        self.is_given_up = False
        """True where the library itself aborts the attempt, and its caller learns why."""
        self.prepared: Prepared | None = None
        """The prepared checkpoint, for the second phase. It is set from the swap of `prepare` on."""
        self.uploader = Uploader(session.store, session.host, self.id)

        # Copies, because the caller changes these in place: the parent's are shared with readers, and the next attempt
        # begins with them if this one is aborted.
        self.positions: dict[str, Json] = deepcopy(dict(parent.positions)) if parent else {}
        self.properties: dict[str, Json] = deepcopy(dict(parent.properties)) if parent else {}
        self.watermark: Json = deepcopy(parent.watermark) if parent else None
        self.clock: Clock | None = parent.clock if parent else None
        """The job's clock. Only a batch of Spark moves it."""
        self.frozen: dict[str, Json] | None = None
        """Positions, watermark and properties as they go into the manifest.

        Later changes do not count.
        """

        self.migrated_objects: dict[str, bytes] = {}
        """Objects of a migration that are not written yet, by path."""
        self._inherited: Mapping[str, Operator] = parent.operators if parent else {}
        if base.migrated is not None:
            self._inherited, self.migrated_objects = base.migrated.under(self.id)
        self._operators = dict(self._inherited)
        self._changes: dict[str, OperatorChange] = {}
        self._change_sets: list[tuple[str, ChangeSet]] = []
        """Captured changes of maps, by operator.

        These maps are told how the attempt ended.
        """
        self.proven_executors: set[str] = set()
        """The executors whose first artifact was found in this store."""

    # ---- what the caller says: checked at once, written meanwhile ------------------------------------------------

    def capture(self, operator: str, state: KeyedState) -> ChangeSet:
        """Capture the changes of `state`, in the caller's thread.

        Only this blocks the caller.
        """
        self.check_open()
        object_paths.encode_name("operator", operator)
        if not isinstance(state, KeyedState):
            raise IllegalArgumentError(
                f"operator {operator!r}: save() takes a KeyedState, not {type(state).__name__}; snapshot() takes bytes"
            )
        # Refused before the capture, which packs every change while the caller waits.
        self._refuse_written(operator)
        old = self._operators.get(operator)
        if old is not None and codecs.kind_of(old) != "map":
            raise IllegalArgumentError(f"operator {operator!r}: holds {old.codec} artifacts: {how_to_keep(operator)}")
        now = None if self.clock is None else micros(self.clock.at)
        below = None if old is None else old.chains
        try:
            captured = state.capture_for_checkpoint(below or {}, self.session.max_chain, now)
        except IllegalArgumentError as error:  # a value that cannot be stored, or entries that expire without a clock
            raise IllegalArgumentError(f"operator {operator!r}: {error}") from None
        captured.below = below
        return captured

    async def save(self, operator: str, capture: ChangeSet) -> None:
        """Write the captured changes of a map.

        Raises if the operator was written or dropped meanwhile; the captured changes stay pending and go into the next
        save.
        """
        self.check_open()
        # Asked again: another thread may have written the operator since the capture.
        self._refuse_written(operator)
        partitions = capture.partitions
        head = self._operators.get(operator)
        # A delta without the chain below it could not be read. A partition without changes would be missing.
        if capture.below is not (None if head is None else head.chains):
            raise InvalidStateError(
                f"operator {operator!r}: was dropped or replaced while it was being saved: save it again"
            )
        if head is not None and head.schema != capture.schema:
            # Also where no partition changed: a rule alone is a change of the operator.
            self._operators[operator] = replace(head, schema=capture.schema)
        codec = codecs.MAP_CODEC if head is None else codecs.CODECS[head.codec]
        change = self.change(operator, codec, partitions)
        # From here on every end of the attempt has to tell the map. If a line above refuses the save, nobody tells it
        # anything, and its changes stay pending.
        self._change_sets.append((operator, capture))
        change.operator = replace(change.operator, schema=capture.schema)
        if change.operator.partitions != partitions:
            # Keys stand in other partitions now. A chain of the parent's that stayed below one of these would bring
            # keys back into a partition that they left.
            change.operator = replace(change.operator, partitions=partitions)
            change.parent = {}
        # Plan everything before the first await: a planned slot that stays empty fails the commit.
        planned = []
        for part in capture.changes:
            old = change.parent.get(part.partition, ())
            slot = ChainSlot(operator, part.partition, codec.name)
            change.plans[part.partition] = ChainPlan(old[: part.keep], [slot])
            planned.append(ToEncode(slot, part, old[0] if old and part.kind == SNAPSHOT else None))
        await submit(self.uploader, self.session.host, planned)

    def operator(self, name: str) -> Operator | None:
        """Return an operator as this checkpoint has it so far, or None."""
        return self._operators.get(name)

    def put_operator(self, name: str, operator: Operator) -> None:
        """Take an operator as it is.

        Its chains consist of the parent's artifacts and this attempt's own.
        """
        self.check_open()
        object_paths.encode_name("operator", name)
        self._refuse_written(name)
        old = self._inherited.get(name)
        for partition, chain in operator.chains.items():
            before = old.chains.get(partition, ()) if old else ()
            for artifact in chain:
                # The one rule: a swap makes live only what is live already, or what carries an id drawn for this
                # attempt.
                if artifact not in before and object_paths.parse_artifact(artifact.path).id != self.id:
                    raise IllegalArgumentError(f"{artifact.path}: not an artifact that was written for {self.id}")
        # What a later version of this library wrote beside it stays.
        known = self._operators.get(name)
        self._operators[name] = operator if known is None else replace(operator, extra=known.extra)

    def keep(self, operator: str, partition: int | None = None) -> None:
        """Confirm that an operator, or one partition, stays as in the parent.

        Raises `IllegalArgumentError` if the parent has none.
        """
        self.check_open()
        self._require_operator(operator, partition)

    def drop(self, operator: str, partition: int | None = None) -> None:
        """Leave an operator, or one of its partitions, out from now on.

        It is neither in this checkpoint nor in those after it. Objects that this attempt wrote for it stay in the store
        until a cleanup; nothing names them.
        """
        self.check_open()
        partition = self._require_operator(operator, partition)
        if partition is None:
            self._operators.pop(operator, None)
            self._changes.pop(operator, None)
            # They must not be told of an operator of this name that is saved after the drop: they would take its chains
            # for theirs, and write deltas on top of them.
            self._change_sets = [c for c in self._change_sets if c[0] != operator]
            return
        old = self._operators.get(operator) or self._changes[operator].operator
        self.change(operator, codecs.CODECS[old.codec], old.partitions).plans[partition] = ChainPlan(())

    def freeze(self) -> None:
        """Take positions, watermark and properties as they are now.

        Values that JSON cannot carry are refused.
        """
        if self.frozen is None:
            self.frozen = check_json_fields(
                positions=self.positions, watermark=self.watermark, properties=self.properties
            )
        if self.state is AttemptState.OPEN:
            self.state = AttemptState.FROZEN

    @property
    def has_small_manifest(self) -> bool:
        """Return whether to make the manifest takes less time than to wake a thread."""
        touched = sum(len(change.plans) for change in self._changes.values())
        return metadata.is_small_manifest(self._operators) and touched <= metadata.SMALL_MANIFEST

    def changed_operators(self) -> tuple[dict[str, Operator], dict[str, list[int]]]:
        """Return every operator to commit, and the partitions that differ.

        It is called once all is written. The second result names only operators whose differing partitions are known.
        The others were written anew as a whole.
        """
        operators, parent = dict(self._operators), self.base.manifest
        touched: dict[str, list[int]] = {}
        for name, change in self._changes.items():
            if change.empty:
                continue
            operators[name] = replace(change.operator, chains=change.chains())
            # One that was written anew, or is not the parent's, may differ in every partition.
            if parent and name in parent.operators and change.parent is parent.operators[name].chains:
                touched[name] = list(change.plans)
        return operators, touched

    def decide(self, manifest: Manifest | None) -> None:
        """Note that a swap decided the outcome of the attempt.

        With a manifest, the attempt is the committed checkpoint. With None, it was aborted.
        """
        self.state = AttemptState.ABORTED if manifest is None else AttemptState.COMMITTED
        self.record_outcome(manifest)

    def record_outcome(self, manifest: Manifest | None) -> None:
        """Tell every captured map the outcome of its changes.

        The outcome is the manifest that holds them, or None.
        """
        for operator, capture in self._change_sets:
            saved = None if manifest is None else manifest.operators.get(operator)
            capture.record_outcome(None if saved is None else saved.chains)
        self._change_sets.clear()

    def check_open(self) -> None:
        """Raise unless this attempt takes more changes, in this process."""
        self.check_undecided()
        # A commit in the background took the positions, and may still wait for its turn: what came now would be
        # committed beside positions that do not know it.
        if self.state is AttemptState.FROZEN:
            raise InvalidStateError(f"{self.id}: this attempt {self.state.value}")

    def check_undecided(self) -> None:
        """Raise unless this attempt can still be committed, in this process."""
        if self.session.process is not forks.current:  # the parent would commit without what is added here
            raise InvalidStateError(
                f"{self.id}: this attempt was begun before this process was forked, and belongs to its parent: write "
                "here with save_snapshot(id, …) or save_delta(id, …), and attach() in the parent what they return"
            )
        if self.state not in UNDECIDED:
            raise InvalidStateError(f"{self.id}: this attempt {self.state.value}")

    def _refuse_written(self, operator: str) -> None:
        if operator in self._changes and not self._changes[operator].empty:
            raise IllegalArgumentError(f"operator {operator!r}: was already written in this checkpoint")

    def change(self, operator: str, codec: Codec, partitions: int) -> OperatorChange:
        """Return the changes of this attempt to an operator, for a write with `codec`."""
        change = self._changes.get(operator)
        # An empty change, left by a write that was refused, must not fix the codec of what comes next.
        if change is None or (change.empty and change.operator.codec != codec.name):
            old = self._operators.get(operator)
            head = old or Operator(partitions, codec.partitioner, codec.name)
            change = OperatorChange(head, old.chains if old else {})
        if (held := change.operator.codec) != codec.name:
            raise IllegalArgumentError(
                f"operator {operator!r}: holds {held} artifacts, not {codec.name}: {how_to_keep(operator)}"
            )
        self._changes[operator] = change
        return change

    def _require_operator(self, operator: str, partition: int | None) -> int | None:
        """Return the number of a partition that the operator has, or None for all of it."""
        object_paths.encode_name("operator", operator)
        change, old = self._changes.get(operator), self._operators.get(operator)
        if change is None and old is None:
            raise IllegalArgumentError(
                f"operator {operator!r}: there is none in {self.base.parent and self.base.parent.id}"
            )
        if partition is None:
            return None
        partition = object_paths.check_partition(partition)  # 1.0 and True would be found too
        if partition not in set(old.chains if old else ()) | set(change.plans if change else ()):
            raise IllegalArgumentError(f"operator {operator!r}: has no partition {partition}")
        return partition
