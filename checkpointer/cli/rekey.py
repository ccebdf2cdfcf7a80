"""Implement `checkpointer rekey`: let another key open an encrypted root."""

import click

from pyspark_checkpointer.cli.arguments import KEY_FORMS
from pyspark_checkpointer.cli.schemas import Rekeyed
from pyspark_checkpointer.cli.screen import print_json, print_line, progress
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.display import count, size


@verb(
    "rekey",
    "rekey /data/orders --encryption key-file:old.key --new-encryption key-file:new.key",
    "rekey s3://jobs/orders --encryption key-file:old.key --new-encryption aws-kms:alias/jobs",
    "rekey /data/orders --encryption key-file:leaked.key --new-encryption key-file:new.key --rewrite",
    writes=True,
    lost=True,
)
@click.option(
    "--new-encryption",
    metavar="PROVIDER:KEY",
    required=True,
    help=f"What is to open the keys of ROOT: {KEY_FORMS}",
)
@click.option("--rewrite", is_flag=True, help="Encrypt the root anew, so that an old key opens nothing of it.")
@click.option("--yes", is_flag=True, help="Encrypt anew without asking.")
def command(store: Opened, new_encryption: str, rewrite: bool, yes: bool) -> None:
    """Let another key open an encrypted root.

    It takes the place of the present one. Only the object `_keys` is written, and a running job is not disturbed. The
    content stays as it is: whoever has an old key and an old copy of `_keys` can still read it.

    With --rewrite each live object is encrypted anew, with a data key that no old key opens, and the original is
    deleted. Stop the job and all consumers before, and start them with the new key. If this was interrupted, the same
    command finishes the work. Old versions that a bucket keeps can still be read with the old keys, and so can backups.
    """
    if not rewrite:
        store.require()
        store.ck.rekey(new_encryption)
        _report(store, {"root": store.ck.root, "objects": None, "bytes": None, "deleted": None})
        return
    # Not required to have a `_latest`: it may hold positions alone, and an earlier call may have got so far that the
    # old key does not open it.
    store.check_can_ask(yes)
    store.confirm(f"Encrypt {store.ck.root} anew? Its job and its consumers must not run.", yes)
    with progress("encrypting", "bytes") as on_progress:
        made = store.ck.reencrypt(new_encryption, progress=on_progress)
    _report(store, {"root": made.root, "objects": made.objects, "bytes": made.bytes, "deleted": made.deleted})


def _report(store: Opened, made: Rekeyed) -> None:
    if store.json:
        print_json(made)
        return
    if made["objects"] == 0:
        print_line(f"{made['root']}: nothing was left to encrypt; an earlier call may have done it")
    others = "no other" if made["objects"] is not None else "those of cleaners"
    print_line(f"{made['root']} is opened by the new key, and by {others}")
    if made["objects"] is not None and made["bytes"] is not None and made["deleted"] is not None:
        print_line(
            f"{count(made['objects'], 'object')} with {size(made['bytes'])} encrypted anew, "
            f"{count(made['deleted'], 'original')} deleted"
        )
