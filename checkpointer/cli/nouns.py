"""What `--json` prints: one schema for each noun, the same in every verb. `docs/json.md` is made of this file.

Times are texts in UTC. Everything that is counted in bytes, seconds or other units has the unit in its name. A value
that is not known, or that there is none of, is null; a field is left out only where its line below says so.
"""

from typing import Annotated, Literal, NotRequired, TypedDict

from pyspark_checkpointer.manifests.model import Json

Id = Annotated[str, "id"]
Time = Annotated[str, "time"]


class Spread(TypedDict):
    """The smallest, the middle and the largest of some numbers."""

    minimum: int
    median: int
    maximum: int


class Amount(TypedDict):
    """So many objects, with so many stored bytes."""

    objects: int
    bytes: int


class SparkProgress(TypedDict):
    """What Spark's own checkpoint said of the batch while it ran."""

    location: Annotated[str, "where that checkpoint was"]
    offsets: Annotated[str, "its file of the batch: up to where the batch reads"]
    before: Annotated[list[str], "the offsets of the batch before, one for each source"]
    lists: Annotated[dict[str, str], "SHA-256 of Spark's lists of files, by their names"]


class Job(TypedDict):
    """The Spark batch that wrote a checkpoint."""

    query_id: str
    run_id: str
    batch_id: int
    driver: Annotated[str | None, "the process that was its driver"]
    spark: SparkProgress | None


class Cost(TypedDict):
    """What a checkpoint cost until its manifest was written."""

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
    """How many partitions have a chain of one length."""

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
    bytes: Annotated[int | None, "of all objects it is made of"]
    own_bytes: Annotated[int | None, "of those that it wrote itself"]
    parent: Annotated[NotRequired[Id | None], "`report` is without it"]
    operators: Annotated[NotRequired[list[str]], "their names; `report` is without it"]
    partitions: Annotated[NotRequired[int], "of all operators; `report` is without it"]
    contents: Annotated[NotRequired[list[Operator]], "`show` and `tree` have it"]
    job: Annotated[NotRequired[Job | None], "`show` alone has it"]
    positions: Annotated[NotRequired[dict[str, Json]], "`show` alone has it"]
    properties: Annotated[NotRequired[dict[str, Json]], "`show` alone has it"]
    watermark: Annotated[NotRequired[Json], "`show` alone has it"]
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


class ValueDifference(TypedDict):
    """A position, a property or the watermark that is not the same in two checkpoints."""

    name: str
    change: Literal["added", "removed", "changed"]
    before: Json
    after: Json


class OperatorDifference(TypedDict):
    """An operator that is not the same in two checkpoints."""

    name: str
    change: Literal["added", "removed", "changed"]
    added: Annotated[list[int], "partitions"]
    removed: Annotated[list[int], "partitions"]
    changed: Annotated[list[int], "partitions"]
    redefined: Annotated[list[str], "which of its partitions, partitioner, codec and schema"]


class Difference(TypedDict):
    """What is different between two checkpoints."""

    before: Id
    after: Id
    operators: list[OperatorDifference]
    positions: list[ValueDifference]
    properties: list[ValueDifference]
    watermark: ValueDifference | None
    bytes_added: Annotated[int, "of objects that only `after` has"]
    bytes_removed: Annotated[int, "of objects that only `before` has"]


class KeyChange(TypedDict):
    """A key whose value or row is not the same in two checkpoints."""

    key: Annotated[Json, "of a table: its key columns, by name; written as `cat` writes it"]
    change: Literal["inserted", "updated", "deleted"]


class KeyDifference(TypedDict):
    """The keys of one operator that are not the same in two checkpoints."""

    before: Id
    after: Id
    operator: str
    inserted: Annotated[int, "keys"]
    updated: Annotated[int, "keys"]
    deleted: Annotated[int, "keys"]
    keys: Annotated[list[KeyChange], "the first of them, as many as `--limit` allows"]
    left_out: Annotated[int, "keys that `keys` is without"]


class Finding(TypedDict):
    """Something that is damaged or missing."""

    path: Annotated[str, "of the object, below the root"]
    problem: Annotated[str, "what was expected, and what was found"]
    missing: bool
    checkpoints: Annotated[list[Id], "those that it hurts, oldest first"]
    and_older: Annotated[bool, "whether all older ones are out of reach too, but for savepoints"]


class Verification(TypedDict):
    """What was looked at, and what was found."""

    checkpoints: int
    objects: Annotated[int, "that were read and compared"]
    bytes: Annotated[int, "that were read and compared"]
    skipped: Annotated[int, "objects that were left out of the sample"]
    findings: list[Finding]
    elsewhere: Annotated[list[Finding], "damage that does not hurt the one checkpoint that was asked for"]


class Held(TypedDict):
    """Objects of one operator and kind, of all live checkpoints, each counted once."""

    operator: str
    kind: Literal["snapshot", "delta", "pack"]
    objects: int
    bytes: int


class Stats(TypedDict):
    """What a whole store holds."""

    checkpoints: int
    savepoints: int
    objects: int
    bytes: int
    metadata: Annotated[Amount, "`_latest`, manifests, segments and the catalog"]
    held: list[Held]
    operators: Annotated[list[Operator], "of the committed checkpoint"]
    commit_bytes: Annotated[Spread | None, "what a commit wrote"]


class Record(TypedDict):
    """One record of an operator: an entry of a map, a row of a table, or one artifact of bytes."""

    partition: int
    key: Annotated[NotRequired[Json], "of a map's entry"]
    value: Annotated[NotRequired[Json], "of a map's entry"]
    row: Annotated[NotRequired[dict[str, Json]], "of a table, by column"]
    kind: Annotated[NotRequired[Literal["snapshot", "delta"]], "of bytes"]
    text: Annotated[NotRequired[str], "of bytes that are text"]
    base64: Annotated[NotRequired[str], "of bytes that are no text"]


class File(TypedDict):
    """A file that was written."""

    file: str
    records: int
    bytes: int


class ExportedOperator(TypedDict):
    """A table or map as Parquet files."""

    name: str
    kind: Literal["table", "map"]
    folder: Annotated[str, "below `target`"]
    rows: int
    files: int


class Exported(TypedDict):
    """A checkpoint as Parquet files. The same stands in `_checkpoint.json` beside them."""

    id: Annotated[Id, "of the checkpoint that was read"]
    epoch: int | None
    target: str
    operators: list[ExportedOperator]
    left_out: Annotated[list[str], "operators that hold bytes of the job's own"]


class Consumer(TypedDict):
    """A partition of a stream: who reads it, and how far."""

    interface: Literal["eventhub", "eventprocessorhost", "kinesis"]
    group: Annotated[list[str], "what names the group of consumers"]
    partition: Annotated[str, "its name in the stream"]
    owner: str | None
    asked_by: Annotated[str | None, "who asked the owner for it"]
    finished: bool
    owner_changes: Annotated[int | None, "how often it changed hands"]
    renewed: Annotated[Time | None, "when its owner claimed or renewed it"]
    recorded: Annotated[Time | None, "when the position was recorded"]
    position: Annotated[dict[str, Json] | None, "as the interface has it"]


class Total(TypedDict):
    """Objects that cleanup treats alike."""

    action: Literal["keep", "delete", "later"]
    reason: str
    objects: int
    bytes: int


class PlannedCheckpoint(TypedDict):
    """A checkpoint, and what a policy makes of it."""

    id: Id
    action: Literal["keep", "retire"]
    reason: str


class Plan(TypedDict):
    """What cleanup would do."""

    root: str
    grace_seconds: float
    note: Annotated[str | None, "why nothing is retired although the policy would"]
    checkpoints: list[PlannedCheckpoint]
    totals: list[Total]


class PlanRow(TypedDict):
    """One object, and what cleanup would do with it."""

    path: Annotated[str, "below the root"]
    bytes: int
    action: Literal["keep", "delete", "later"]
    reason: str
    referenced_by: Annotated[Id | None, "the strongest of the checkpoints that reference it"]
    reference_count: Annotated[int, "how many reference it"]
    leftover: Annotated[str | None, "the store's own name of what an interrupted write left behind"]


class Cleaned(TypedDict):
    """What a cleanup did."""

    retired: list[Id]
    deleted: Amount
    later: Annotated[Amount, "what goes once the grace period is over"]
    note: Annotated[str | None, "why nothing was retired although the policy would"]


class Deleted(TypedDict):
    """What was deleted."""

    deleted: Annotated[str, "the id of a checkpoint, or the name of a savepoint"]


class Commit(TypedDict):
    """A checkpoint that was committed with the content of another."""

    id: Id
    root: str
    content_of: Id


class Fork(TypedDict):
    """A second query, and its first checkpoint."""

    id: Id
    root: str
    content_of: Id
    spark_checkpoint: Annotated[str, "its checkpointLocation"]
    query_id: str
    batch: Annotated[int, "the one that it ends with"]


class Rewind(TypedDict):
    """What a rewind changed, or would change."""

    query_id: str
    left: Annotated[Id, "what was committed before"]
    left_batch: int
    to: Annotated[Id, "whose content is the state now"]
    batch: Annotated[int, "Spark goes on with the next one"]
    spark_checkpoint: Annotated[str, "the query's checkpointLocation"]
    cut: Annotated[list[str], "files that were taken out of it"]
    written: Annotated[list[str], "files that were put there"]
    kept_in: Annotated[str | None, "the folder of it that has what was cut"]
    savepoint: Annotated[str | None, "the name that keeps what was left"]
    changes: Annotated[bool, "whether anything was to be changed"]
    new: Annotated[Id | None, "the new commit; null where nothing was done"]
    refused: Annotated[str | None, "why the same call without --dry-run would be refused now; null where it would not"]


class Candidate(TypedDict):
    """A manifest that a store could be repaired to, with the evidence that it was once committed."""

    id: Id
    epoch: int | None
    created: Time | None
    job: Job | None
    bytes: Annotated[int, "of all objects it names"]
    problems: Annotated[list[str], "why it is not whole"]
    proven: Annotated[bool, "whether anything shows that it was committed"]
    committed: Annotated[bool, "whether what is left of `_latest` names it"]
    children: Annotated[int, "manifests that name it as their parent"]
    catalogs: Annotated[int, "catalogs that name it"]
    savepoints: Annotated[list[str], "its names in those catalogs"]
    batch_done: Annotated[bool | None, "whether Spark finished its batch; null where that was not looked at"]


class OlderState(TypedDict):
    """An older state of a damaged partition that is whole."""

    id: Annotated[Id | None, "the newest checkpoint that had it; null where nothing says which"]
    epoch: int | None
    records: Annotated[int, "records and changes in it"]


class Loss(TypedDict):
    """A partition that is damaged."""

    operator: str
    partition: Annotated[int | None, "null for all partitions of the operator"]
    problem: str
    records: Annotated[int | None, "records and changes that it held; null where that cannot be read"]
    older: Annotated[OlderState | None, "what it can be taken back to"]


class RepairPlan(TypedDict):
    """What a repair would keep of a damaged checkpoint, and what would be missing."""

    content_of: Id
    epoch: int | None
    whole: Annotated[int, "partitions that are whole"]
    losses: list[Loss]
    lost_savepoints: list[str]


class Repair(TypedDict):
    """A commit with what is whole of another checkpoint."""

    id: Id
    root: str
    content_of: Id
    lost: Annotated[RepairPlan | None, "what is missing; null where nothing is"]
    older_partitions: Annotated[bool, "whether what has an `older` state in `lost` went back to it, and is not missing"]


class Writer(TypedDict):
    """Who may commit. The number is one more with each takeover."""

    number: int
    instance: str


class Retired(TypedDict):
    """A part of the history that was retired lately."""

    boundary: Annotated[int, "the sequence that the history began with"]
    at: Time


class Pointer(TypedDict):
    """What `_latest` says."""

    writer: Writer
    committed: Id | None
    prepared: Id | None
    boundary: Annotated[int, "the sequence that the history begins with"]
    retired: list[Retired]


class Left(TypedDict):
    """What the job left with the committed checkpoint."""

    job: Job | None
    watermark: Json
    positions: dict[str, Json]
    properties: dict[str, Json]


class Cleanup(TypedDict):
    """What cleanup would do, in short."""

    totals: list[Total]
    retired: list[Id]
    note: Annotated[str | None, "why that is not known"]


class Report(TypedDict):
    """A store at one moment, as far as it could be read."""

    verdict: str
    root: str
    made: Time
    pointer: Pointer | None
    committed: Left | None
    checkpoints: list[Checkpoint]
    operators: Annotated[list[Operator], "of the committed checkpoint, the largest first"]
    unread_operators: Annotated[list[str], "those whose partition lists are damaged"]
    biggest_partitions: list[Partition]
    savepoints: list[Savepoint]
    cleanup: Cleanup
    verification: Verification
    share: Annotated[float, "the chance that each object had of being compared, from 0 to 1"]
    chains_left_out: Annotated[int, "checkpoints of which only the manifest was read"]
    candidates: list[Candidate]


class Error(TypedDict):
    """Why a verb failed."""

    error: "Failure"


class Failure(TypedDict):
    """The only thing that stands in an error."""

    type: Annotated[str, "the name of the exception's class"]
    message: str
    retryable: Annotated[bool, "whether waiting can help"]
    status: Annotated[int, "the exit status"]


PRINTED: tuple[tuple[str, object], ...] = (
    ("list", list[Checkpoint]),
    ("show", Checkpoint),
    ("tree", Checkpoint),
    ("diff", Difference),
    ("diff OPERATOR", KeyDifference),
    ("cat", list[Record]),
    ("cat --output", File),
    ("stats", Stats),
    ("consumers", list[Consumer]),
    ("verify", Verification),
    ("report", Report),
    ("savepoint", list[Savepoint]),
    ("savepoint NAME", Savepoint),
    ("savepoint --delete", Deleted),
    ("rewind", Rewind),
    ("fork", Fork),
    ("rollback", Commit),
    ("delete", Deleted),
    ("plan", Plan),
    ("plan --rows", list[PlanRow]),
    ("clean", Cleaned),
    ("export", Commit),
    ("export --format parquet", Exported),
    ("repair", list[Candidate]),
    ("repair --to", Repair),
    ("repair --to DAMAGED", RepairPlan),
)
"""What each verb prints. With several meanings, the argument or option that makes the difference."""
