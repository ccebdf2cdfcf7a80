"""Implement `checkpointer cat`: print the records of an operator."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click

from pyspark_checkpointer.checkpoint.listing import read_listed
from pyspark_checkpointer.checkpoint.restore import CheckpointReader
from pyspark_checkpointer.checkpoint.selector import LATEST, CheckpointSelector
from pyspark_checkpointer.cli import schemas
from pyspark_checkpointer.cli.arguments import CHECKPOINT, OPERATOR
from pyspark_checkpointer.cli.records import records, require_arrow
from pyspark_checkpointer.cli.screen import print_json, print_line, to_output
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.display import count
from pyspark_checkpointer.errors import NotFoundError
from pyspark_checkpointer.manifests.codecs import kind_of


class _Partition(click.IntRange):
    """The number of a partition.

    People type a checkpoint before the operator, as other verbs take one there.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            hint = f"{error.message.rstrip('.')}; a checkpoint goes with --checkpoint, after the operator"
            raise click.BadParameter(hint, ctx, param) from None


NOTE = """A keyed state gives {"partition", "key", "value"}, a table {"partition", "row"}, and bytes of a job's own
format {"partition", "kind", "text"} for each artifact, or "base64" if they are not text. A value that JSON does not
have is an object with one name that begins with `$`: {"$tuple": [1, 2]}, {"$decimal": "1.10"}, {"$bytes": "AP8="},
{"$datetime": "2024-01-02T03:04:05+00:00"}, {"$map": [[key, value], …]} for keys that are not text.
Text of a table that is not UTF-8 is {"$bytes": …}, and a year above 9999 has a sign."""


@verb(
    "cat",
    "cat /data/orders totals",
    "cat /data/orders seen 3 --checkpoint at=2024-01-02T06:00Z --limit 10",
    "cat s3://bucket/jobs/orders totals --checkpoint before-migration | jq .row",
    "cat /data/orders totals -o totals.parquet",
    note=NOTE,
)
@click.argument("operator", type=OPERATOR)
@click.argument("partition", type=_Partition(min=0), required=False)
@click.option(
    "--checkpoint",
    type=CHECKPOINT,
    metavar="CHECKPOINT",
    default=LATEST,
    show_default=True,
    help="Read this checkpoint.",
)
@click.option("--limit", type=click.IntRange(min=0), help="Print at most this many records.")
@click.option(
    "-o", "--output", metavar="FILE.parquet", type=click.Path(dir_okay=False, path_type=Path), help="Write Parquet."
)
def command(
    store: Opened,
    operator: str,
    partition: int | None,
    checkpoint: CheckpointSelector,
    limit: int | None,
    output: Path | None,
) -> None:
    """Print an operator's records as JSON lines.

    Without PARTITION it prints the records of all partitions, of the committed checkpoint unless another is named. With
    --json they are one array. Every byte is verified before it is shown. Partitions are read one after the other. With
    --output a table, or the keys and values of a map, as JSON text, are written as a Parquet file.
    """
    # What was typed wrong is said before anything is read.
    if output is not None and output.suffix != ".parquet":
        raise click.BadParameter(f"{output}: give a name that ends in .parquet", param_hint="--output")
    listed = store.read(lambda session: read_listed(session, checkpoint))
    reader = CheckpointReader(store.session, listed.manifest, None)
    numbers = _partitions(reader, operator, partition)
    if output is not None:
        _write(store, reader, operator, numbers, limit, output)
        return
    # Records are read one by one, so that a limit also limits what is fetched.
    found = islice(records(reader, operator, numbers), limit)
    if store.json:
        _print_array(found)
    else:
        for record in found:
            print(to_output(record))


def _partitions(reader: CheckpointReader, name: str, partition: int | None) -> list[int]:
    """Return the partitions to read: the given one, or all that have state."""
    operator = reader.operator(name)
    if partition is None:
        return sorted(operator.chains)
    if partition not in operator.chains:
        raise NotFoundError(f"operator {name!r}: has no state in partition {partition}")
    return [partition]


def _write(
    store: Opened, reader: CheckpointReader, name: str, partitions: list[int], limit: int | None, output: Path
) -> None:
    """Write a table or map as one Parquet file, and print how many records it has."""
    kind = kind_of(reader.operator(name))
    if kind == "bytes":
        raise click.BadParameter(
            f"operator {name!r} holds bytes of the job's own format: only tables and maps can be written as Parquet",
            param_hint="--output",
        )
    require_arrow(store.ck.root)
    from pyspark_checkpointer.table.parquet_file import PlainRows, write_file  # pyarrow, only for those who use tables

    written = write_file(PlainRows(reader, name, kind, partitions), partitions, limit, output)
    document: schemas.File = {"file": str(output), "records": written, "bytes": output.stat().st_size}
    if store.json:
        print_json(document)
    else:
        print_line(f"{output}: {count(written, 'record')}")


def _print_array(found: Iterator[schemas.Record]) -> None:
    """Print one JSON array, record by record.

    All records may not fit into memory.
    """
    separator = "["
    for record in found:
        print(f"{separator}\n  {to_output(record)}", end="")
        separator = ","
    print("[]" if separator == "[" else "\n]")
