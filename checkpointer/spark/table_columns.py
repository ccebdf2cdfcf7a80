"""Decide which columns a table has in a batch.

The job and the rows say so.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.model import Json
from pyspark_checkpointer.spark.dataframes import check_has_key, fields_of
from pyspark_checkpointer.spark.table_expiry import TableExpiry
from pyspark_checkpointer.table.schema import Combine, TableSchema, check_dropped, missing
from pyspark_checkpointer.table.schema_evolution import extended_schema, first_schema
from pyspark_checkpointer.table.types import is_wider


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Keep the columns that a job declares when it opens a table.

    `declared` are the columns that the job says the table has, as Spark's JSON. All methods raise
    `IllegalArgumentError`, before anything is written, for what does not fit.
    """

    table: str
    key: list[str]
    combine: dict[str, Combine]
    declared: Sequence[Json]
    expiry: TableExpiry

    def accept(self, rows: DataFrame, old: TableSchema | None, evolve: Callable[..., TableSchema]) -> TableSchema:
        """Return the schema of the table once these rows are in it."""
        fields = fields_of(rows)
        if old is None:
            return self.expiry.in_schema(first_schema(self.table, fields, self.key, self.combine))
        return self.expiry.in_schema(evolve(self.table, old, fields, self.key, self.combine))

    def accept_keys(self, rows: DataFrame, old: TableSchema) -> TableSchema:
        """Return the schema of the table once it may have the keys of these rows.

        It has the columns that the job declares, in the types that the job gives them, or in wider types that it has
        already.
        """
        check_has_key(self.table, rows, self.key)
        declared = [field for field in self.declared if field["name"] not in old.key]
        fields = [field for field in fields_of(rows) if field["name"] in old.key]
        return self.expiry.in_schema(self._extended(old, [*fields, *_widened(declared, old)]))

    def accept_first_seen(self, rows: DataFrame, old: TableSchema) -> TableSchema:
        """Return the schema of the table after it takes in these rows.

        Only columns that the table has now count.
        """
        schema = self.accept_keys(rows, old)
        names = {name.lower() for name in schema.names}
        # A name that differs in case alone is refused with the others.
        fields = [field for field in fields_of(rows) if field["name"].lower() in names]
        combine = {column.name: column.role for column in schema.values}
        return self.expiry.in_schema(extended_schema(self.table, schema, _widened(fields, schema), self.key, combine))

    def first_of_first_seen(self, rows: DataFrame) -> TableSchema:
        """Return the schema of a new table that has only the keys of these rows.

        It also has the time by which rows expire.
        """
        rule = self.expiry.rule
        wanted = self.key if rule is None else [*self.key, rule.column]
        fields = [field for field in fields_of(rows) if field["name"] in wanted]
        return self.expiry.in_schema(first_schema(self.table, fields, self.key, self._combine_of(wanted)))

    def check_first_seen(self, rows: DataFrame) -> None:
        """Raise `IllegalArgumentError` for rows without a key or an expiry.

        A row without an expiry would never expire.
        """
        check_has_key(self.table, rows, self.key)
        rule = self.expiry.rule
        if rule is not None and rule.column not in rows.columns:
            raise IllegalArgumentError(
                f"table {self.table!r}: first_seen(): rows expire {rule}, and a new key without it never would: "
                f"{missing(rule.column, rows.columns)}"
            )

    def check_dropped(self, names: Sequence[str]) -> None:
        """Raise `IllegalArgumentError` for columns that no such table can lack.

        They are those of the key, and the time by which rows expire.
        """
        check_dropped(self.table, self.key, names)
        rule = self.expiry.rule
        if rule is not None and rule.column in names:
            raise IllegalArgumentError(
                f"table {self.table!r}: rows expire {rule}, and there would be no such column: leave expire= out"
            )

    def with_declared_time(self, schema: TableSchema) -> TableSchema:
        """Return a schema with the column by which rows expire.

        The column is added if the schema lacks it and the job declares it.
        """
        rule = self.expiry.rule
        if rule is None or rule.column in schema.names:
            return schema
        return self._extended(schema, [field for field in self.declared if field["name"] == rule.column])

    def _extended(self, old: TableSchema, fields: Sequence[Json]) -> TableSchema:
        """Return a schema with some more fields.

        Key columns that are not given stay as they are.
        """
        given = {field["name"] for field in fields}
        key = [{"name": column.name, "type": column.type, "metadata": {}} for column in old.key_columns]
        fields = [*(field for field in key if field["name"] not in given), *fields]
        return extended_schema(self.table, old, fields, self.key, self._combine_of({*old.names, *given}))

    def _combine_of(self, names: Collection[str]) -> dict[str, Combine]:
        """Return how the columns of these names are combined.

        A job may name a column that only a later upsert brings.
        """
        return {column: how for column, how in self.combine.items() if column in names}


def _widened(fields: Sequence[Json], schema: TableSchema) -> list[Json]:
    """Return the fields, in the types of their columns where these are wider.

    The values fit as they are. The role of a column counts all the same.
    """
    kinds = {column.name: column.type for column in schema.columns}
    return [
        field | {"type": kinds[field["name"]]} if is_wider(field["type"], kinds.get(field["name"])) else field
        for field in fields
    ]


__all__ = ["TableColumns"]
