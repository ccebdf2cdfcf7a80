"""`checkpointer cat`."""

from base64 import b64encode
from collections.abc import Iterator
from itertools import islice

import click

from checkpointer.cli.screen import to_text
from checkpointer.cli.verb import CHECKPOINT, Opened, verb
from checkpointer.codecs import keyed_codec
from checkpointer.codecs.tagged import to_json
from checkpointer.codecs.values import unpack
from checkpointer.overview import LATEST, read_listed
from checkpointer.restore import Snapshot
from checkpointer.runtime import run_sync
from checkpointer.store.connection import require
from manifests import layout
from manifests.model import Json

NOTE = """A keyed state gives {"partition", "key", "value"}, a table {"partition", "row"}, and bytes of a job's own
format {"partition", "kind", "text"} for each artifact, or "base64" where they are no text. A value that JSON does not
have is an object with one name that begins with `$`: {"$tuple": [1, 2]}, {"$decimal": "1.10"}, {"$bytes": "AP8="},
{"$datetime": "2024-01-02T03:04:05+00:00"}, {"$map": [[key, value], …]} for keys that are no text."""


@verb(
    "cat",
    "cat /data/orders totals",
    "cat /data/orders seen 3 --id 41 --limit 10",
    "cat s3://bucket/jobs/orders totals --savepoint before-migration | jq .row",
    note=NOTE,
)
@click.argument("operator")
@click.argument("partition", type=click.IntRange(min=0), required=False)
@click.option("--id", "checkpoint", type=CHECKPOINT, metavar="CHECKPOINT", help="Of this checkpoint, not the latest.")
@click.option("--savepoint", metavar="NAME", help="Of this savepoint.")
@click.option("--epoch", type=int, help="Of the checkpoint of this epoch.")
@click.option("--limit", type=click.IntRange(min=0), help="No more than so many records.")
def command(
    store: Opened,
    operator: str,
    partition: int | None,
    checkpoint: str | None,
    savepoint: str | None,
    epoch: int | None,
    limit: int | None,
) -> None:
    """Print an operator's records as JSON lines.

    Those of all its partitions or of one, in the committed checkpoint unless another is named. With --json they are one
    array. Every byte is verified before it is shown. Partitions are read one after the other.
    """
    wanted = [text for text in (checkpoint, savepoint and f"savepoint={savepoint}") if text]
    wanted += [] if epoch is None else [f"epoch={epoch}"]
    if len(wanted) > 1:
        raise click.UsageError("give one of --id, --savepoint and --epoch, not several")
    listed = store.read(lambda session: read_listed(session, wanted[0] if wanted else LATEST))
    snapshot = Snapshot(store.ck._session, listed.manifest, None)
    records = islice(_records(snapshot, operator, partition, store.ck.root), limit)
    if store.json:
        _print_array(records)
    else:
        for record in records:
            print(to_text(record))


def _print_array(records: Iterator[Json]) -> None:
    """One array, written while it is read."""
    mark = "["
    for record in records:
        print(f"{mark}\n  {to_text(record)}", end="")
        mark = ","
    print("[]" if mark == "[" else "\n]")


def _records(snapshot: Snapshot, name: str, partition: int | None, root: str) -> Iterator[Json]:
    operator = snapshot.operator(name)
    if partition is not None and partition not in operator.chains:
        raise click.BadParameter(f"operator {name!r} has no state in partition {partition}", param_hint="PARTITION")
    numbers = sorted(operator.chains) if partition is None else [partition]
    if operator.codec == layout.PARQUET:
        require("pyarrow", "spark", root)
        yield from _rows(snapshot, name, numbers)
    elif operator.partitioner == keyed_codec.PARTITIONER:
        yield from _entries(snapshot, name, numbers)
    else:
        yield from _artifacts(snapshot, name, numbers)


def _rows(snapshot: Snapshot, name: str, partitions: list[int]) -> Iterator[Json]:
    from checkpointer.table.opening import partition_reader  # pyarrow, only for tables

    read = partition_reader(snapshot, name, partitions)
    for partition in partitions:
        for batch in run_sync(read(partition)).to_batches(max_chunksize=1024):
            for row in batch.to_pylist():
                yield {"partition": partition, "row": {column: to_json(value) for column, value in row.items()}}


def _entries(snapshot: Snapshot, name: str, partitions: list[int]) -> Iterator[Json]:
    for partition in partitions:
        for key, value in run_sync(snapshot.entries(name, partition)).items():
            yield {"partition": partition, "key": to_json(key), "value": to_json(unpack(value))}


def _artifacts(snapshot: Snapshot, name: str, partitions: list[int]) -> Iterator[Json]:
    for partition in partitions:
        chain = snapshot.operator(name).chains[partition]
        for artifact, data in zip(chain, run_sync(snapshot.partition(name, partition)), strict=True):
            try:
                content = {"text": data.decode()}
            except UnicodeDecodeError:
                content = {"base64": b64encode(data).decode()}
            yield {"partition": partition, "kind": artifact.kind} | content
