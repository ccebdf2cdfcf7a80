"""The command `checkpointer`: one verb for each thing that an operator asks of a store.

A verb is one function under `@verb` (`verb.py`) that calls the core and shows what it got (`screen.py`); `app.py` lists
them. Nothing here is imported by the library, and only showing something on a terminal imports rich.
"""

import io
import logging
import os
import sys


def main() -> None:
    """Run the command line of this process, and exit with its status."""
    from pyspark_checkpointer.cli.app import checkpointer

    logging.getLogger().addHandler(logging.NullHandler())  # what matters is said in one sentence at the end
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # closed by the shell: >&-
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    checkpointer()


__all__ = ["main"]
