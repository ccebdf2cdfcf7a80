"""Implement `checkpointer history`: what each checkpoint did to one key."""

import click

from pyspark_checkpointer.checkpoint.key_history import KeyHistory
from pyspark_checkpointer.checkpoint.listing import read_listed
from pyspark_checkpointer.checkpoint.restore import CheckpointReader
from pyspark_checkpointer.checkpoint.selector import LATEST, CheckpointSelector
from pyspark_checkpointer.cli import schemas
from pyspark_checkpointer.cli.arguments import CHECKPOINT, OPERATOR
from pyspark_checkpointer.cli.key_argument import KEY, KeyCommand, TypedKey
from pyspark_checkpointer.cli.screen import print_json, print_line, print_table, to_text
from pyspark_checkpointer.cli.table import TextColumn
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.client.key_history import key_history
from pyspark_checkpointer.display import moment

_COLUMNS = (
    TextColumn("ID"),
    TextColumn("EPOCH", right=True),
    TextColumn("CREATED"),
    TextColumn("CHANGE"),
    TextColumn("BEFORE", prose=True),
    TextColumn("AFTER", prose=True),
)

NOTE = """KEY is written as `cat` and `diff` write it: a JSON value, or an object with one name that begins with `$`.
What is no JSON is text: ann means "ann". 1001, true and null mean the texts "1001", "true" and "null" where nothing
else of that key is found, since a shell takes the quotes of "1001" away; '"1001"' means the text alone. Of a table KEY
is an object of its key columns, {"user": "ann", "day": 7}, or the value alone where there is one column. A text that
begins with `-` and no digit needs `--` before it."""


@verb(
    "history",
    "history /data/orders seen ann",
    'history /data/orders totals \'{"user": "ann", "day": {"$date": "2024-01-02"}}\' --after epoch=41',
    "history s3://bucket/jobs/orders totals 7 --to before-migration --json",
    note=NOTE,
    cls=KeyCommand,
)
@click.argument("operator", type=OPERATOR)
@click.argument("key", type=KEY)
@click.option("--after", type=CHECKPOINT, metavar="CHECKPOINT", help="Begin with what came after this checkpoint.")
@click.option("--to", type=CHECKPOINT, metavar="CHECKPOINT", help="End with this checkpoint, not with the latest.")
def command(
    store: Opened, operator: str, key: TypedKey, after: CheckpointSelector | None, to: CheckpointSelector | None
) -> None:
    """Show what each checkpoint did to one key of a map or a table.

    A checkpoint inserts, updates or deletes the key, or lets its row expire. Without --after the history begins with
    the oldest checkpoint that is live without a gap up to the last one. Only the partition of the key is read.
    """
    wanted = to or CheckpointSelector(LATEST)
    listed = store.read(lambda session: read_listed(session, wanted))
    reader = CheckpointReader(store.session, listed.manifest, None)
    found = store.read(lambda _: key_history(reader, operator, key.key, after, as_json=True, typed=key.typed))
    if store.json:
        print_json(_document(found))
        return
    print_line(f"{found.operator}, {to_text(found.key)}")
    if found.changes:
        print_table(_COLUMNS, [_row(document) for document in _document(found)["changes"]])
    else:
        print_line("no checkpoint changed it")
    if found.is_complete:
        print_line(f"from {found.since} on, with which the history of the store begins")
    else:
        had = "had no such key, or null" if found.first is None else f"had {to_text(found.first)}"
        print_line(f"after {found.since}, which {had}")


def _row(change: schemas.HistoryChange) -> tuple[object, ...]:
    sides = ["" if change[side] is None else to_text(change[side]) for side in ("before", "after")]
    return (change["id"], change["epoch"], change["created"], change["change"], *sides)


def _document(found: KeyHistory) -> schemas.KeyHistory:
    return {
        "operator": found.operator,
        "key": found.key,
        "since": str(found.since),
        "complete": found.is_complete,
        "first": found.first,
        "changes": [
            {
                "id": str(change.id),
                "epoch": change.epoch,
                "created": moment(change.created),
                "change": change.change,
                "before": change.before,
                "after": change.after,
            }
            for change in found.changes
        ],
    }
