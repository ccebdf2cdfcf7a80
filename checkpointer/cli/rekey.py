"""Implement `checkpointer rekey`: let another key open an encrypted root."""

import click

from pyspark_checkpointer.cli.arguments import KEY_FORMS
from pyspark_checkpointer.cli.schemas import Rekeyed
from pyspark_checkpointer.cli.screen import print_json, print_line
from pyspark_checkpointer.cli.verb import Opened, verb


@verb(
    "rekey",
    "rekey /data/orders --encryption key-file:old.key --new-encryption key-file:new.key",
    "rekey s3://jobs/orders --encryption key-file:old.key --new-encryption aws-kms:alias/jobs",
    writes=True,
)
@click.option(
    "--new-encryption",
    metavar="PROVIDER:KEY",
    required=True,
    help=f"What is to open the keys of ROOT: {KEY_FORMS}",
)
def command(store: Opened, new_encryption: str) -> None:
    """Let another key open an encrypted root.

    It takes the place of the present one. Only the object `_keys` is written, and a running job is not disturbed. The
    content stays as it is: whoever has an old key and an old copy of `_keys` can still read it.
    """
    store.ck.rekey(new_encryption)
    if store.json:
        made: Rekeyed = {"root": store.ck.root}
        print_json(made)
    else:
        print_line(f"{store.ck.root} is opened by the new key, and by no other")
