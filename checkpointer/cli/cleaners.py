"""Implement `checkpointer cleaners`: say who may clean a root and not read it."""

import click

from pyspark_checkpointer.cli.arguments import KEY_FORMS
from pyspark_checkpointer.cli.schemas import RootKeys
from pyspark_checkpointer.cli.screen import print_json, print_line, print_table
from pyspark_checkpointer.cli.table import TextColumn
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError

_COLUMNS = (TextColumn("OPENS"), TextColumn("PROVIDER"), TextColumn("KEY"))


@verb(
    "cleaners",
    "cleaners /data/orders --encryption key-file:orders.key",
    "cleaners /data/orders --encryption key-file:orders.key --allow key-file:cleaner.key",
    "cleaners s3://jobs/orders --encryption aws-kms:alias/jobs --remove 1f2e3d4c5b6a7980",
    writes=True,
    lost=True,
)
@click.option(
    "--allow",
    metavar="PROVIDER:KEY",
    multiple=True,
    help=f"Let this key open the structure of ROOT: {KEY_FORMS}",
)
@click.option(
    "--remove",
    metavar="NAME",
    multiple=True,
    help="Take ROOT away from the cleaner with this KEY, or with this PROVIDER where only one cleaner has it.",
)
def command(store: Opened, allow: tuple[str, ...], remove: tuple[str, ...]) -> None:
    """Show or change which keys open an encrypted root.

    The key of a cleaner opens all but artifacts and packs. With it as --encryption, `clean`, `verify` and other
    commands work that read no state. --allow and --remove need a key that opens all. Only the object `_keys` is
    written, and a running job is not disturbed. A cleaner whose key was removed may have kept what it opened: where
    that matters, use `checkpointer rekey --rewrite`.
    """
    try:
        found = store.ck.change_cleaners(allow=allow, remove=remove) if allow or remove else store.ck.cleaners()
    except (IllegalArgumentError, InvalidStateError):
        store.require()  # a mistyped root is one without keys too
        raise
    if store.json:
        document: RootKeys = {
            "root": store.ck.root,
            "keys": [{"provider": one.provider, "key": one.key, "opens": one.opens} for one in found],
        }
        print_json(document)
        return
    print_line(f"{store.ck.root} is opened by")
    print_table(_COLUMNS, [(one.opens, one.provider, one.key) for one in found])
