"""Describe what a store holds.

That is sizes, costs, records, exported files, and positions of consumers.
"""

from typing import Annotated, Literal, NotRequired, TypedDict

from pyspark_checkpointer.cli.schemas.checkpoint import Operator
from pyspark_checkpointer.cli.schemas.values import Amount, Id, Spread, Time
from pyspark_checkpointer.manifests.model import Json


class Held(TypedDict):
    """Objects of one operator and kind, of all live checkpoints, each counted once."""

    operator: str
    kind: Literal["snapshot", "delta", "pack"]
    objects: int
    bytes: int


class Stats(TypedDict):
    """The content of a whole store."""

    checkpoints: int
    savepoints: int
    objects: int
    bytes: int
    metadata: Annotated[Amount, "`_latest`, manifests, segments and the catalog"]
    held: list[Held]
    operators: Annotated[list[Operator], "of the committed checkpoint"]
    commit_bytes: Annotated[Spread | None, "what a commit wrote"]


class RequestCost(TypedDict):
    """Requests of one price class. Numbers are means, so they need not be whole."""

    price_class: Annotated[
        Literal["put", "get", "delete"], "`put`: PUT, POST and LIST; `get`: GET and HEAD; `delete`: DELETE"
    ]
    each_batch: float
    each_start: Annotated[float, "of the job"]
    each_cleanup: float
    month: float
    price_per_1000: float
    usd: Annotated[float, "for the month"]


class KeptCost(TypedDict):
    """The content of the store on average.

    If nothing is deleted, it is the content at the end of the month.
    """

    bytes: int
    objects: int
    price_per_gb: Annotated[float, "for a month and 2^30 bytes"]
    usd: float


class Forecast(TypedDict):
    """The cost of a job in a month of 730 hours."""

    root: Annotated[str | None, "that was measured; null where options say what a batch changes"]
    checkpoints: Annotated[int | None, "that were measured"]
    batches: Annotated[float, "in the month"]
    cleanups: Annotated[float, "in the month"]
    requests: list[RequestCost]
    bytes_each_batch: int
    written_bytes: Annotated[int, "in the month"]
    kept: KeptCost
    prices: Annotated[str, "whose list prices, and of when; `--price` replaces single ones"]
    usd: Annotated[float, "all of it"]


class Record(TypedDict):
    """One record of an operator.

    It is an entry of a map, a row of a table, or one artifact of bytes.
    """

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
    """A checkpoint as Parquet files.

    `_checkpoint.json` beside the files has the same fields.
    """

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
