"""Implement `checkpointer signers`: say whose signatures count in a root."""

import os

import click

from pyspark_checkpointer.cli.schemas import SignerList
from pyspark_checkpointer.cli.screen import print_json, print_line, print_table
from pyspark_checkpointer.cli.table import TextColumn
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.errors import IllegalArgumentError

_COLUMNS = (TextColumn("NAME"), TextColumn("MAY"), TextColumn("PUBLIC KEY"))


@verb(
    "signers",
    "signers /data/orders --signing trust:owner.pub",
    "signers /data/orders --owner owner.pem --allow driver.pub=commit --allow cleaner.pub=clean",
    "signers /data/orders --owner owner.pem --revoke driver",
    writes=True,
    lost=True,
)
@click.option("--owner", metavar="FILE", help="Change the list with this private key of an owner of ROOT.")
@click.option(
    "--allow",
    metavar="FILE=ROLES",
    multiple=True,
    help="Let the owner of this public key `commit`, `clean` or `consume`; several with a comma.",
)
@click.option("--revoke", metavar="NAME", multiple=True, help="Let nothing count that this signer signs from now on.")
def command(store: Opened, owner: str | None, allow: tuple[str, ...], revoke: tuple[str, ...]) -> None:
    """Show or change who may sign what in a root.

    With --owner the root becomes a signed one. What is there already is signed by the owner: stop the job before, and
    start it with --signing. If this was interrupted, the same command finishes the work. `commit` is for a job, with
    its savepoints and retention; `clean` is for these two alone; `consume` is for positions of consumers. What a
    signer committed before it was revoked still counts.
    """
    if owner is None and (allow or revoke):
        raise click.UsageError("Say with --owner who changes the list")
    wanted: dict[str | os.PathLike[str], list[str]] = {}
    for text in allow:
        path, equals, roles = text.rpartition("=")
        if not equals or not path:
            raise click.UsageError(f"--allow {text!r:.80}: expected FILE=ROLES, as in driver.pub=commit")
        wanted[path] = roles.split(",")
    try:
        found = store.ck.signers() if owner is None else store.ck.change_signers(owner, allow=wanted, revoke=revoke)
    except IllegalArgumentError:
        if owner is None:
            store.require()  # a mistyped root is one without signatures too
        raise
    rows = list(found.signers.values())
    if store.json:
        document: SignerList = {
            "root": store.ck.root,
            "root_id": found.root_id,
            "version": found.version,
            "signers": [
                {"name": one.name, "key": one.key, "roles": list(one.roles), "through": one.through} for one in rows
            ],
        }
        print_json(document)
        return
    print_line(f"version {found.version} of the list of signers of {store.ck.root}, root {found.root_id}")
    if rows:
        print_table(
            _COLUMNS,
            [
                (one.name, ", ".join(one.roles) if one.through is None else f"revoked after {one.through}", one.key)
                for one in rows
            ],
        )
