"""Implement the command `checkpointer`: one verb for each question or action.

A verb is one function under `@verb` (`verb.py`). It calls `admin/` or the client, and prints the result (`screen.py`).
`app.py` lists the verbs. The library imports nothing from here, and rich is imported only to print on a terminal.
"""

import io
import logging
import os
import sys


def main() -> None:
    """Run the command line of this process, and exit with its status."""
    try:
        from pyspark_checkpointer.cli.app import checkpointer
    except KeyboardInterrupt:
        sys.exit(130)  # Nothing has begun. Python would print a traceback, which looks like a crash.

    # Warnings of the library would go to stderr, where scripts expect one sentence, or one JSON object, at most.
    logging.getLogger().addHandler(logging.NullHandler())
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115  # closed by the shell: <&-
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    # Without a buffer, as in `python -u`, what a full disk does not take is forgotten, and may not even be an error.
    if isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):
        sys.stdout = open(sys.stdout.fileno(), "w", 1, sys.stdout.encoding, closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # in a locale that is not UTF-8, a name can still be printed
    checkpointer()


__all__ = ["main"]
