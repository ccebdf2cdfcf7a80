"""Implement `checkpointer report`: one page about a store."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyspark_checkpointer.admin.encrypted_file import REPORT, decrypt_file, encrypt_file, is_encrypted
from pyspark_checkpointer.admin.retention.policy import RetentionPolicy
from pyspark_checkpointer.cli import report_document
from pyspark_checkpointer.cli.cleanup import rules
from pyspark_checkpointer.cli.failures import Mistyped
from pyspark_checkpointer.cli.screen import print_json, print_line, progress
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.storage import find_keys
from pyspark_checkpointer.storage.connection import require
from pyspark_checkpointer.storage.local import files

if TYPE_CHECKING:
    from pyspark_checkpointer.storage.encryption.data_keys import DataKeys


@verb(
    "report",
    "report /data/orders -o report.html",
    "report s3://bucket/jobs/orders -o report.html --verify 0 --keep-last 100 --daily 30d",
    "report /data/orders --json | jq .verdict",
    "report /data/orders -o report.enc --encrypted --encryption key-file:orders.key",
    "report /data/orders --open report.enc -o report.html --encryption key-file:orders.key",
    lost=True,
    note="Exit status: 0 if nothing is wrong, 1 if something is damaged or missing. The page is written in both cases.",
)
@click.option("-o", "--output", metavar="FILE", help="Write the page to this file; `-` for stdout.")
@click.option("--encrypted", is_flag=True, help="Encrypt the page with the keys of ROOT, which is encrypted.")
@click.option("--open", "opened", metavar="FILE", help="Make no page: decrypt this one, and write it to --output.")
@click.option(
    "--verify",
    "share",
    type=float,
    metavar="SHARE",
    help="Read and compare each object with this chance, from 0 (only what names objects) to 1. Without it, all "
    "objects up to about 1 GiB or 10,000 objects, and a sample of a larger store.",
)
@rules
def command(
    store: Opened, output: str | None, encrypted: bool, opened: str | None, share: float | None, **policy: Any
) -> int:
    """Make one page about a store, for a bad day.

    The page says whether anything is wrong and what it hurts; size, time and blocked time of each checkpoint; chains,
    skew and the biggest partitions; what cleanup would free with the given rules. It is one file that needs no
    other. It names what cannot be read as a finding. The verb only reads the store.

    A page shows positions and properties. With --encrypted nobody reads it without a key of ROOT, and --open gives it
    back.
    """
    from pyspark_checkpointer.cli.report_page import page
    from pyspark_checkpointer.cli.report_page.gather import make_report

    # Both are found out before the store is read, which may take minutes.
    target = _target(output, store.json)
    if opened is not None:
        if encrypted or store.json or share is not None:
            raise click.UsageError("--open decrypts one page: it goes with -o alone")
        _put(target, decrypt_file(opened, REPORT, _read(opened), _keys(store)))
        return 0
    keys = _keys(store) if encrypted else None
    if encrypted and (keys is None or output is None):
        raise click.UsageError("--encrypted needs a page, with -o, and a ROOT that is encrypted, with --encryption")
    if output is not None:
        require("jinja2", "report", "the page of a report")
    with progress("verifying", "bytes") as on_progress:
        report = make_report(store.ck, policy=RetentionPolicy(**policy), share=share, progress=on_progress)
    if report.is_empty:
        store.require()
    if output is not None:
        # Text from a store may have lone surrogates, which UTF-8 cannot write.
        data = page.render(report).encode("utf-8", "xmlcharrefreplace")
        _put(target, data if keys is None else encrypt_file(keys, REPORT, data))
    if store.json:
        print_json(report_document.report(report))
    elif target is not None:
        print_line(f"{output}: {report.verdict}; {page.age_of_newest(report)}")
    return 1 if report.verification.findings else 0


def _target(output: str | None, as_json: bool) -> Path | None:
    """Return the file to write, or None for stdout.

    Raise before anything is read if the file cannot be written.
    """
    if output is None and not as_json:
        raise click.UsageError("Say where to write the page: -o report.html", click.get_current_context())
    if output == "-" and as_json:
        raise click.UsageError("stdout cannot take both the page and --json", click.get_current_context())
    if output in (None, "-"):
        return None
    path = Path(str(output)).resolve()
    if path.is_dir():
        raise Mistyped(f"{output}: is a folder: give the name of a file")
    if not path.parent.is_dir():
        raise Mistyped(f"{output}: there is no folder {path.parent} to write to")
    if not os.access(path.parent, os.W_OK):
        raise Mistyped(f"{output}: you may not write to {path.parent}")
    return path


def _keys(store: Opened) -> "DataKeys | None":
    """Return the keys of an encrypted root."""
    return store.read(lambda session: find_keys(session.store))


def _read(path: str) -> bytes:
    """Return the content of a file with an encrypted page."""
    try:
        with open(path, "rb") as file:
            if is_encrypted(file):
                return file.read()
    except OSError as error:
        raise Mistyped(f"{path}: {error.strerror}") from None
    raise Mistyped(f"{path}: is no encrypted report")


def _put(target: Path | None, data: bytes) -> None:
    """Write the page, or what it is encrypted to, to its file or to stdout."""
    if target is None:
        sys.stdout.buffer.write(data)
    else:
        _write(target, data)


def _write(path: Path, data: bytes) -> None:
    """Replace the page at once, so that nobody sees half of it.

    Only the owner may read a new page.
    """
    if path.exists() and not path.is_file():  # a device or a pipe cannot be replaced
        try:
            path.write_bytes(data)
        # Not an error of the output: whoever read the pipe has had enough. The command ends as for any pipe.
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Mistyped(f"{path}: {error.strerror}") from None
        return
    try:
        files.put_in_place(files.write_temporary(str(path), data), str(path))
    except OSError as error:
        raise Mistyped(f"{path}: {error.strerror}") from None
