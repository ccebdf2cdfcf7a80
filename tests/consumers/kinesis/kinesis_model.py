"""The contract of a shard's checkpointer as plainly as it can be said, to compare an implementation with."""

from typing import Any

from pyspark_checkpointer.consumers.kinesis import ExtendedSequenceNumber
from pyspark_checkpointer.errors import IllegalArgumentError, LeaseLostError

Place = tuple[int, int]
"""A number and a sub-sequence number; a negative number is a place to begin."""

NAMES = {"AT_TIMESTAMP": -3, "TRIM_HORIZON": -2, "LATEST": -1, "SHARD_END": 10**200}
END = (NAMES["SHARD_END"], 0)


def public(place: Place) -> ExtendedSequenceNumber:
    names = {number: name for name, number in NAMES.items()}
    return ExtendedSequenceNumber(names.get(place[0], str(place[0])), place[1])


def place_of(sequence_number: object, sub: object) -> Place:
    if isinstance(sequence_number, str) and sequence_number == "SHARD_END" and sub == 0:
        return END
    if not isinstance(sequence_number, str) or not sequence_number.isdigit() or not isinstance(sub, int) or sub < 0:
        raise IllegalArgumentError("no sequence number of a record")
    return int(sequence_number), sub


class ModelShard:
    """A shard that remembers. Taking it ends what its owner before may do."""

    def __init__(self) -> None:
        self.committed: Place = (NAMES["TRIM_HORIZON"], 0)
        self.prepared: tuple[Place, bytes | None] | None = None
        self.owner: ModelCheckpointer | None = None

    def take(self) -> "ModelCheckpointer":
        self.owner = ModelCheckpointer(self)
        return self.owner

    def release(self, checkpointer: "ModelCheckpointer") -> None:
        if self.owner is checkpointer:
            self.owner = None

    @staticmethod
    def deliver(checkpointer: "ModelCheckpointer", records: list[dict[str, Any]]) -> None:
        if checkpointer.last_record is not None:
            raise IllegalArgumentError("the shard has ended")
        for record in records:
            checkpointer.seen_place = max(checkpointer.seen_place, checkpointer.record(record))
            checkpointer.was_delivered = True

    @staticmethod
    def end(checkpointer: "ModelCheckpointer") -> None:
        if checkpointer.last_record is None:
            checkpointer.last_record, checkpointer.seen_place = checkpointer.seen_place, END


class ModelCheckpointer:
    def __init__(self, shard: ModelShard) -> None:
        self.shard = shard
        self.seen_place, self.last_record = shard.committed, None
        self.was_delivered = False

    # ---- what it knows

    @property
    def position(self) -> ExtendedSequenceNumber:
        return public(self.shard.committed)

    @property
    def seen(self) -> ExtendedSequenceNumber:
        return public(self.seen_place)

    @property
    def pending(self) -> "ModelPrepared | None":
        return None if self.shard.prepared is None else ModelPrepared(self, self.shard.prepared[0])

    @property
    def pending_state(self) -> bytes | None:
        return None if self.shard.prepared is None else self.shard.prepared[1]

    # ---- checkpoints

    def checkpoint(self) -> None:
        self.fence()
        if self.was_delivered or self.last_record is not None:
            self.commit(self.seen_place)

    def checkpoint_by_record(self, record: Any) -> None:
        self.commit(self.record(record))

    def checkpoint_by_sequence_number(self, sequence_number: Any) -> None:
        self.commit(place_of(sequence_number, 0))

    def checkpoint_by_sequence_number_ex(self, sequence_number: Any, sub: Any) -> None:
        self.commit(place_of(sequence_number, sub))

    def prepare_checkpoint(self, *, application_state: bytes | None = None) -> "ModelPrepared":
        return self.prepare(self.seen_place, application_state)

    def prepare_checkpoint_by_record(self, record: Any, *, application_state: bytes | None = None) -> "ModelPrepared":
        return self.prepare(self.record(record), application_state)

    def prepare_checkpoint_by_sequence_number(
        self, sequence_number: Any, *, application_state: bytes | None = None
    ) -> "ModelPrepared":
        return self.prepare(place_of(sequence_number, 0), application_state)

    def prepare_checkpoint_by_sequence_number_ex(
        self, sequence_number: Any, sub: Any, *, application_state: bytes | None = None
    ) -> "ModelPrepared":
        return self.prepare(place_of(sequence_number, sub), application_state)

    def flush(self) -> None:
        self.fence()

    # ---- rules

    def record(self, record: Any) -> Place:
        if record is None:
            raise IllegalArgumentError("no record")
        return place_of(record["SequenceNumber"], record.get("SubSequenceNumber", 0))

    def fence(self) -> None:
        if self.shard.owner is not self:
            raise LeaseLostError("somebody else's")

    def permit(self, place: Place) -> Place:
        self.fence()
        place = END if place == self.last_record else place
        handed_over = self.shard.prepared is not None and self.shard.prepared[0] == place
        seen = (
            self.seen_place if place == END or self.last_record is None else max(self.last_record, self.shard.committed)
        )
        if place < self.shard.committed or (place > seen and not handed_over):
            raise IllegalArgumentError("out of range")
        return place

    def commit(self, place: Place) -> None:
        place = self.permit(place)
        self.shard.committed, self.shard.prepared = place, None
        self.seen_place = max(self.seen_place, place)

    def redeem(self, place: Place) -> None:
        self.commit(place)

    def prepare(self, place: Place, state: bytes | None) -> "ModelPrepared":
        place = self.permit(place)
        needless = place == self.shard.committed and state is None
        self.shard.prepared = None if needless else (place, state)
        return ModelPrepared(self, place)


class ModelPrepared:
    def __init__(self, checkpointer: ModelCheckpointer, place: Place) -> None:
        self.checkpointer, self.place = checkpointer, place

    @property
    def pending_checkpoint(self) -> ExtendedSequenceNumber:
        return public(self.place)

    def checkpoint(self) -> None:
        self.checkpointer.redeem(self.place)
