"""Describe what `--json` prints: one schema for each kind of thing.

A schema is the same in every verb. `docs/json.md` is made of the schemas.

Times are texts in UTC. A field that is counted in bytes, seconds or other units has the unit in its name. A value that
is not known, or that does not exist, is null; a field is left out only where its schema says so.
"""

from pyspark_checkpointer.cli.schemas.checkpoint import (
    Artifact,
    ChainCount,
    Checkpoint,
    Cost,
    Job,
    Operator,
    Partition,
    Savepoint,
    SparkProgress,
)
from pyspark_checkpointer.cli.schemas.cleanup import (
    Cleaned,
    CleanupPlan,
    Deleted,
    Follower,
    PlannedCheckpoint,
    PlannedFollower,
    PlanRow,
    RemovedFollower,
    Total,
)
from pyspark_checkpointer.cli.schemas.commits import Commit, Fork, Rewind
from pyspark_checkpointer.cli.schemas.contents import (
    Consumer,
    Exported,
    ExportedOperator,
    File,
    Forecast,
    Held,
    KeptCost,
    Record,
    RequestCost,
    Stats,
)
from pyspark_checkpointer.cli.schemas.damage import (
    Candidate,
    Finding,
    Loss,
    OlderState,
    Repair,
    RepairPlan,
    Verification,
)
from pyspark_checkpointer.cli.schemas.diagnosis import Check, Contest, Diagnosis, Latency
from pyspark_checkpointer.cli.schemas.difference import (
    Difference,
    HistoryChange,
    KeyChange,
    KeyDifference,
    KeyHistory,
    OperatorDifference,
    ValueDifference,
)
from pyspark_checkpointer.cli.schemas.errors import Error, Failure
from pyspark_checkpointer.cli.schemas.report import Cleanup, Committed, Pointer, Report, Retired, Writer
from pyspark_checkpointer.cli.schemas.values import Amount, Id, Spread, Time

PRINTED: tuple[tuple[str, object], ...] = (
    ("list", list[Checkpoint]),
    ("show", Checkpoint),
    ("tree", Checkpoint),
    ("diff", Difference),
    ("diff OPERATOR", KeyDifference),
    ("history", KeyHistory),
    ("cat", list[Record]),
    ("cat --output", File),
    ("stats", Stats),
    ("cost", Forecast),
    ("consumers", list[Consumer]),
    ("verify", Verification),
    ("report", Report),
    ("doctor", Diagnosis),
    ("savepoint", list[Savepoint]),
    ("savepoint NAME", Savepoint),
    ("savepoint --delete", Deleted),
    ("followers", list[Follower]),
    ("followers --remove", RemovedFollower),
    ("rewind", Rewind),
    ("fork", Fork),
    ("rollback", Commit),
    ("delete", Deleted),
    ("plan", CleanupPlan),
    ("plan --rows", list[PlanRow]),
    ("clean", Cleaned),
    ("export", Commit),
    ("export --format parquet", Exported),
    ("repair", list[Candidate]),
    ("repair --to", Repair),
    ("repair --to DAMAGED", RepairPlan),
)
"""The schema that each verb prints.

A verb that prints several schemas is named with the argument or option that decides.
"""

__all__ = [
    "PRINTED",
    "Amount",
    "Artifact",
    "Candidate",
    "ChainCount",
    "Check",
    "Checkpoint",
    "Cleaned",
    "Cleanup",
    "CleanupPlan",
    "Commit",
    "Committed",
    "Consumer",
    "Contest",
    "Cost",
    "Deleted",
    "Diagnosis",
    "Difference",
    "Error",
    "Exported",
    "ExportedOperator",
    "Failure",
    "File",
    "Finding",
    "Follower",
    "Forecast",
    "Fork",
    "Held",
    "HistoryChange",
    "Id",
    "Job",
    "KeptCost",
    "KeyChange",
    "KeyDifference",
    "KeyHistory",
    "Latency",
    "Loss",
    "OlderState",
    "Operator",
    "OperatorDifference",
    "Partition",
    "PlanRow",
    "PlannedCheckpoint",
    "PlannedFollower",
    "Pointer",
    "Record",
    "RemovedFollower",
    "Repair",
    "RepairPlan",
    "Report",
    "RequestCost",
    "Retired",
    "Rewind",
    "Savepoint",
    "SparkProgress",
    "Spread",
    "Stats",
    "Time",
    "Total",
    "ValueDifference",
    "Verification",
    "Writer",
]
