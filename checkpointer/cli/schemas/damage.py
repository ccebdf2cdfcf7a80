"""Define the JSON of damage, and of the repair of a store."""

from typing import Annotated, TypedDict

from pyspark_checkpointer.cli.schemas.checkpoint import Job
from pyspark_checkpointer.cli.schemas.values import Id, Time


class Finding(TypedDict):
    """Something that is damaged or missing."""

    path: Annotated[str, "of the object, below the root"]
    problem: Annotated[str, "what was expected, and what was found"]
    missing: bool
    checkpoints: Annotated[list[Id], "those that it hurts, oldest first"]
    and_older: Annotated[bool, "whether all older ones are out of reach too, but for savepoints"]
    hurts: Annotated[str, "what it hurts, as text: also where no checkpoint is named"]


class Signed(TypedDict):
    """Who signed the last commit, and when."""

    at: Time
    signer: Annotated[str, "the name and the public key"]


class Verification(TypedDict):
    """The result of a verification."""

    checkpoints: int
    objects: Annotated[int, "that were read and compared"]
    bytes: Annotated[int, "that were read and compared"]
    skipped: Annotated[int, "objects that were left out of the sample"]
    findings: list[Finding]
    elsewhere: Annotated[list[Finding], "damage that does not hurt the one checkpoint that was asked for"]
    signed: Annotated[Signed | None, "null in a root that is not signed"]
    unread: Annotated[int, "of `objects`, those that a cleaner's key does not open: their stored bytes were checked"]


class Candidate(TypedDict):
    """A manifest that a store could be repaired to.

    It comes with the evidence that it was once committed.
    """

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
    copied: Annotated[bool, "whether a repair wrote it, as the beginning of a new history"]


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
    """The partitions that a repair of a damaged checkpoint would keep or lose."""

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
