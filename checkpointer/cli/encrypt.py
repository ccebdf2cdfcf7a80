"""Implement `checkpointer encrypt`: encrypt a root where it is."""

import click

from pyspark_checkpointer.cli.schemas import EncryptedRoot
from pyspark_checkpointer.cli.screen import print_json, print_line, progress
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.display import count, size
from pyspark_checkpointer.errors import StoreNotFoundError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.storage.base import holds


@verb(
    "encrypt",
    "encrypt /data/orders --encryption key-file:/run/secrets/state.key",
    writes=True,
    plain=True,
    lost=True,  # a root may have only positions of consumers
)
@click.option("--yes", is_flag=True, help="Encrypt without asking.")
def command(store: Opened, encryption: str | None, yes: bool) -> None:
    """Encrypt a root where it is.

    Its keys are opened by what --encryption says. Stop the job before, and start it with the key. Each live object is
    copied, encrypted, and the original is deleted. If this was interrupted, the same command finishes the work. Old
    versions that a bucket keeps stay readable, and so do backups. With `hide-names:` before the provider, names of
    operators, groups and partitions are encrypted in paths too.
    """
    if encryption is None:
        raise click.UsageError("Say with --encryption what is to open the keys")
    try:
        store.require()
    except StoreNotFoundError:
        # A signed root shows its list of signers to nobody.
        if not store.ck.is_signed and not store.read(lambda session: holds(session.store, object_paths.is_ours)):
            raise
    store.check_can_ask(yes)
    store.confirm(f"Encrypt {store.ck.root}? Whoever loses the key loses the state.", yes)
    with progress("encrypting", "bytes") as on_progress:
        made = store.ck.encrypt(encryption, progress=on_progress)
    if store.json:
        document: EncryptedRoot = {
            "root": made.root,
            "objects": made.objects,
            "bytes": made.bytes,
            "deleted": made.deleted,
        }
        print_json(document)
    else:
        print_line(
            f"{made.root} is encrypted: {count(made.objects, 'object')} with {size(made.bytes)} copied, "
            f"{count(made.deleted, 'original')} deleted"
        )
