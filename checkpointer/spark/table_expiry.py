"""Decide which rows of one table expire in one batch, by the job's rule and clock."""

from dataclasses import dataclass

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.spark.job_clock import JobClock
from pyspark_checkpointer.table.expiry import Expire, is_within, limit
from pyspark_checkpointer.table.schema import TableSchema
from pyspark_checkpointer.table.version import TableVersion


@dataclass(frozen=True, slots=True)
class TableExpiry:
    """The rule that a job gives for a table, if any, at the job's clock."""

    table: str
    rule: Expire | None
    clock: JobClock

    def check(self) -> None:
        """Raise `InvalidStateError` for a rule in a job that has no clock."""
        if self.rule is not None:
            self.clock.now()

    def rule_for(self, schema: TableSchema) -> Expire | None:
        """Return the rule if the schema has its column; else None.

        A later upsert of the batch may bring the column.
        """
        return self.rule if self.rule is not None and self.rule.column in schema.names else None

    def in_schema(self, schema: TableSchema) -> TableSchema:
        """Return the schema with the rule.

        Raises `IllegalArgumentError` where no column fits.
        """
        return schema if self.rule is None else schema.expiring(self.table, self.rule)

    def hold_clock(self, use: str = "was used") -> None:
        """Refuse to move the clock from now on in this batch.

        The rows that were seen depend on the clock.
        """
        if self.rule is not None:
            self.clock.hold(f"table {self.table!r} {use}")

    def now(self, version: TableVersion) -> TableVersion:
        """Return a version at the time of the clock.

        A job whose tables do not expire needs no clock.
        """
        if version.schema.expire is None:
            return version
        self.hold_clock()  # First: another thread may be about to move it.
        return version.at(self.clock.now())

    def brings_back(self, old: Expire | None, new: Expire | None) -> bool:
        """Return whether rows that are expired by the old rule would live by the new one."""
        return old is not None and not (new is not None and is_within(new, old))

    def due(self, version: TableVersion) -> tuple[str, int]:
        """Return the column of the rule, and the latest time of a row that is expired now.

        Raises `IllegalArgumentError` for a table whose rows do not expire.
        """
        rule = version.schema.expire
        if rule is None:
            raise IllegalArgumentError(
                f"table {self.table!r}: expired(): its rows do not expire: open it with expire=…"
            )
        return rule.column, limit(rule, self.clock.now())
