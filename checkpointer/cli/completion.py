"""Complete names of a store in a shell.

An error, or a store that is slow, completes nothing.
"""

import asyncio
import os
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

from pyspark_checkpointer.admin import savepoints
from pyspark_checkpointer.checkpoint.listing import read_listed, read_listing
from pyspark_checkpointer.checkpoint.selector import LATEST, CheckpointSelector
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.cli.storage_options import options_for
from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.runtime import run_sync

TIMEOUT_SECONDS = 3.0
"""The time that a shell waits for a store."""

Names = Callable[[Session], Coroutine[Any, Any, list[str]]]

_SPECIAL = re.compile(r"[^\w@%+=:,./-]")
"""A character at which a shell splits a word, or that means something else to it."""


def checkpoints(context: click.Context, typed: str) -> list[str]:
    """Return the savepoints that complete a text, and ids once a digit was typed."""
    found = [LATEST, *_read(context, _savepoints)]
    # Ids are read only then: that takes a request for each checkpoint.
    if typed[:1].isdigit():
        found += _read(context, _ids)
    return _matching(found, typed)


def operators(context: click.Context, typed: str) -> list[str]:
    """Return the operators of the committed checkpoint that complete a text."""
    return _matching(_read(context, _operators), typed)


def _matching(names: list[str], typed: str) -> list[str]:
    """Return the names that begin with the typed text.

    Names that a shell would not take as they are, as it splits or runs them, are left out.
    """
    return [name for name in names if name.startswith(typed) and not _SPECIAL.search(name)]


def _read(context: click.Context, names: Names) -> list[str]:
    """Return names from the store that the command line names; none if anything fails."""
    # After an option that lacks its value, click leaves the arguments unparsed: the first of them is the root.
    root = context.params.get("root") or next(iter(context.args), None)
    # Whatever goes wrong would be printed into the line that somebody is typing. Nothing is written, so stores
    # without fencing will do.
    with suppress(Exception), _open(context, root) as ck:
        return run_sync(asyncio.wait_for(names(ck.session), TIMEOUT_SECONDS))
    return []


def _open(context: click.Context, root: str | None) -> Checkpointer:
    given = context.params
    return Checkpointer(
        root or "",
        options_for(root or "", given.get("storage_options"), context=context),
        fencing="none",
        encryption=given.get("encryption"),
        signing=given.get("signing"),
    )


async def _savepoints(session: Session) -> list[str]:
    return [savepoint.name for savepoint in await savepoints.savepoints(session)]


async def _ids(session: Session) -> list[str]:
    return [str(listed.ref.id) for listed in (await read_listing(session)).checkpoints]


async def _operators(session: Session) -> list[str]:
    return sorted((await read_listed(session, CheckpointSelector(LATEST))).manifest.operators)


# ---- bash ------------------------------------------------------------------------------------------------------------


class BashWords(BashComplete):
    """Complete words in bash, which splits them at `:`, `=` and `@` too.

    The parts of URLs, `epoch=41`, `--option=value` and `@file` are joined again. A user may have told bash not to
    split there.
    """

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one that is typed, and that one."""
        parts = split_arg_string(os.environ["COMP_WORDS"])[1:]
        at = int(os.environ["COMP_CWORD"])
        words: list[str] = []
        glued = False
        for part in parts[:at]:
            is_break = not part.strip(":=@")
            # An option before it is a word of its own: `--storage-options @file`.
            begins = part[:1] == "@" and bool(words) and words[-1].startswith("-") and "=" not in words[-1]
            if words and (glued or is_break) and not begins:
                words[-1] += part
            else:
                words.append(part)
            glued = is_break
        return (words[:-1], words[-1]) if len(parts) >= at else (words, "")

    def format_completion(self, item: CompletionItem) -> str:
        """Return a completion as bash takes it.

        Bash replaces the last part of what was typed.
        """
        _, typed = self.get_completion_args()
        value = typed.partition("=")[2] if typed.startswith("--") and "=" in typed else typed
        parts, at = split_arg_string(os.environ["COMP_WORDS"]), int(os.environ["COMP_CWORD"])
        last = parts[at] if at < len(parts) and parts[at].strip(":=@") else ""
        kept = len(value) - len(last)
        # Not split at `=`, the last part has the name of the option too.
        rest = item.value[kept:] if kept >= 0 else last[: len(last) - len(value)] + item.value
        return super().format_completion(CompletionItem(rest, item.type, item.help))


add_completion_class(BashWords)
