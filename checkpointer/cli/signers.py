"""Implement `checkpointer signers`: say whose signatures count in a root."""

import os

import click

from pyspark_checkpointer.cli.schemas import SignerList
from pyspark_checkpointer.cli.screen import print_json, print_line, print_table
from pyspark_checkpointer.cli.table import TextColumn
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.storage.connection import require

_COLUMNS = (TextColumn("NAME"), TextColumn("MAY"), TextColumn("PUBLIC KEY"))


@verb(
    "signers",
    "signers /data/orders --signing trust:owner.pub",
    "signers /data/orders --owner owner.pem --allow driver.pub=commit --allow cleaner.pub=clean",
    "signers /data/orders --owner owner.pem --revoke driver",
    writes=True,
    lost=True,
    note="Without a terminal to ask on, --yes is needed to sign a root that holds something and is not signed yet.",
)
@click.option("--owner", metavar="FILE", help="Change the list with this private key of an owner of ROOT.")
@click.option(
    "--allow",
    metavar="FILE=ROLES",
    multiple=True,
    help="Let the owner of this public key `commit`, `clean` or `consume`; several with a comma.",
)
@click.option("--revoke", metavar="NAME", multiple=True, help="Let nothing count that this signer signs from now on.")
@click.option("--yes", is_flag=True, help="Sign what the root holds without asking.")
def command(store: Opened, owner: str | None, allow: tuple[str, ...], revoke: tuple[str, ...], yes: bool) -> None:
    """Show or change who may sign what in a root.

    With --owner the root becomes a signed one. What is there already is signed by the owner, after a question: stop the
    job before, and start it with --signing, since from then on a job without it is refused. Only an export leads back.
    If this was interrupted, the same command finishes the work. `commit` is for a job, with
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
    if owner is not None and not yes:
        _ask(store)
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


def _ask(store: Opened) -> None:
    """Ask before a root that holds something becomes a signed one.

    A new root has nothing to lose.
    """
    require("cryptography", "encryption", "signing")
    # Imported here: most commands need no package for signatures.
    from pyspark_checkpointer.admin.sign_root import would_sign

    if store.read(would_sign):
        store.confirm(
            f"Sign all that {store.ck.root} holds? From then on a job without --signing is refused, and only an export "
            "leads back",
            yes=False,
        )
