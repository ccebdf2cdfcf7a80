"""Define the JSON of a checkpoint, its parts, and the names that keep it."""

from typing import Annotated, Literal, NotRequired, TypedDict

from pyspark_checkpointer.cli.schemas.values import Id, Spread, Time
from pyspark_checkpointer.manifests.model import Json


class SparkProgress(TypedDict):
    """The entry of Spark's own checkpoint for the batch, while the batch ran."""

    location: Annotated[str, "where that checkpoint was"]
    offsets: Annotated[str, "its file of the batch: up to where the batch reads"]
    before: Annotated[list[str], "the offsets of the batch before, one for each source"]
    lists: Annotated[dict[str, str], "SHA-256 of Spark's lists of files, by their names"]
    gone: Annotated[dict[str, str], "the last offsets of sources that the query left out, by their names"]


class Job(TypedDict):
    """The Spark batch that wrote a checkpoint."""

    query_id: str
    run_id: str
    batch_id: int
    driver: Annotated[str | None, "the process that was its driver"]
    spark: SparkProgress | None


class Cost(TypedDict):
    """The cost of a checkpoint until its manifest was written."""

    requests: int
    objects: int
    bytes: int
    elapsed_seconds: Annotated[float, "since the attempt began, with what the job did meanwhile"]
    blocked_seconds: Annotated[float, "how much of that the job was held up"]


class Artifact(TypedDict):
    """One snapshot or delta of one partition."""

    kind: Literal["snapshot", "delta"]
    path: Annotated[str, "the object that holds it, below the root"]
    offset: Annotated[int, "where it begins in that object, in bytes"]
    bytes: Annotated[int, "stored, of this artifact alone"]
    object_bytes: Annotated[int, "of the whole object"]
    raw_bytes: Annotated[int, "once decompressed"]
    records: int
    digest: Annotated[str, "SHA-256 of the stored bytes, in hex"]
    written_by: Annotated[Id, "the checkpoint that wrote it"]


class Partition(TypedDict):
    """One partition of one operator."""

    operator: str
    partition: int
    bytes: Annotated[int, "its share of the stored bytes"]
    chain_length: Annotated[int, "artifacts that its state is made of"]
    records: Annotated[int, "those of deltas too"]
    artifacts: Annotated[NotRequired[list[Artifact]], "`tree` alone has it"]


class ChainCount(TypedDict):
    """The number of partitions with a chain of one length."""

    chain_length: int
    partitions: int


class Operator(TypedDict):
    """One operator of one checkpoint, and what its chains hold."""

    name: str
    codec: str
    partitioner: str
    declared_partitions: Annotated[int, "over which keys are spread"]
    partitions: Annotated[int, "that have state"]
    chain_lengths: Annotated[Spread | None, "artifacts of a partition"]
    snapshot_bytes: int
    delta_bytes: int
    records: Annotated[int, "those of deltas too"]
    objects: int
    object_bytes: Annotated[int, "of whole objects, with what they hold for others"]
    schema: Annotated[Json, "of its rows or bytes, where it has one"]
    contents: Annotated[NotRequired[list[Partition]], "`tree` alone has it"]
    left_out: Annotated[NotRequired[int], "partitions that `contents` is without; `tree` alone has it"]
    chain_counts: Annotated[NotRequired[list[ChainCount]], "`report` alone has it"]
    partition_bytes: Annotated[NotRequired[Spread | None], "`report` alone has it"]


class Checkpoint(TypedDict):
    """One checkpoint."""

    id: Id
    sequence: int
    epoch: Annotated[int | None, "Spark's batch id, or what `begin` was given"]
    created: Time | None
    state: Literal["committed", "prepared", "history", "kept"]
    savepoints: Annotated[list[str], "the names that keep it"]
    bytes: Annotated[int | None, "of all objects it is made of; `list` may need `--sizes`"]
    own_bytes: Annotated[int | None, "of those that it wrote itself; `list` may need `--sizes`"]
    parent: Annotated[NotRequired[Id | None], "`report` is without it"]
    operators: Annotated[NotRequired[list[str]], "their names; `report` is without it"]
    partitions: Annotated[NotRequired[int], "of all operators; `report` is without it"]
    contents: Annotated[NotRequired[list[Operator]], "`show` and `tree` have it"]
    job: Annotated[NotRequired[Job | None], "`show` alone has it"]
    positions: Annotated[NotRequired[dict[str, Json]], "`show` alone has it"]
    properties: Annotated[NotRequired[dict[str, Json]], "`show` alone has it"]
    watermark: Annotated[NotRequired[Json], "`show` alone has it"]
    clock: Annotated[NotRequired[Time | None], "the job's clock, by which rows of tables expire; `show` alone has it"]
    biggest_partitions: Annotated[NotRequired[list[Partition]], "`show` alone has it"]
    snapshot_bytes: Annotated[NotRequired[int | None], "of its own bytes; `report` alone has it"]
    delta_bytes: Annotated[NotRequired[int | None], "of its own bytes; `report` alone has it"]
    cost: Annotated[NotRequired[Cost | None], "`report` alone has it"]
    damaged: Annotated[NotRequired[bool], "whether a finding hurts it; `report` alone has it"]


class Savepoint(TypedDict):
    """A checkpoint that is kept by name."""

    name: str
    id: Id
    created: Time
