"""Return the history of one key, of a map or a table."""

import shlex
from collections.abc import Sequence
from typing import Any

from pyspark_checkpointer.checkpoint.ancestry import read_live_ancestry
from pyspark_checkpointer.checkpoint.key_history import KeyChange, KeyHistory, map_changes
from pyspark_checkpointer.checkpoint.restore import CheckpointReader, find_operator
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.codecs import kind_of
from pyspark_checkpointer.manifests.msgpack_values import unpack
from pyspark_checkpointer.manifests.tagged_json import to_json


async def key_history(
    reader: CheckpointReader,
    name: str,
    key: Any,
    after: CheckpointSelector | None,
    *,
    as_json: bool = False,
    typed: str | None = None,
) -> KeyHistory:
    """Return the history of a key up to the checkpoint of a reader.

    Values are JSON if asked for. `typed` is the word that a person typed for the key. A shell takes the quotes away
    from a text such as "1001", so where such a key has no history, that of the word as text is returned, if it has one.
    """
    session = reader.session
    if (manifest := reader.manifest) is None:
        reader.operator(name)  # Raises, as nothing is committed.
    assert manifest is not None
    parent, manifests = await read_live_ancestry(session, after, CheckpointSelector("id", manifest.id), name)
    line = [*([] if parent is None else [parent]), *manifests]
    having = [manifest for manifest in line if name in manifest.operators]
    # One that was dropped has a history too.
    operator = find_operator((having or line)[-1].operators, name)
    kind = kind_of(operator)
    may_be_text = typed is not None and (key is None or isinstance(key, int | float))
    keys = [key, typed] if may_be_text else [key]
    if kind == "table":
        from pyspark_checkpointer.table import key_history as tables  # pyarrow, only for those who use tables
        from pyspark_checkpointer.table.python_values import json_rows, python_rows

        shown = tables.newest_schema(name, parent, manifests)
        assert shown is not None
        if may_be_text:
            keys = tables.readings(key, str(typed), shown)

        def row(rows: Any) -> Any:
            advice = f"`checkpointer history {shlex.quote(session.store.url)} {shlex.quote(name)} KEY` shows it"
            return next(json_rows(rows)) if as_json else python_rows(f"table {name!r}", rows, shown.key, advice)[0]

        async def read(key: Any) -> KeyHistory:
            key = tables.key_columns(name, key, shown)
            return history(key, *await tables.table_changes(session, key, name, shown, parent, manifests, row))
    elif kind == "map":
        value = (lambda packed: to_json(unpack(packed))) if as_json else unpack

        async def read(key: Any) -> KeyHistory:
            return history(key, *await map_changes(session, name, key, parent, manifests, value))
    else:
        raise IllegalArgumentError(
            f"operator {name!r}: holds bytes of the job's own format, whose keys nobody else can read"
        )

    def history(key: Any, first: Any, changes: Sequence[KeyChange]) -> KeyHistory:
        return KeyHistory(name, to_json(key) if as_json else key, line[0].id, parent is None, first, tuple(changes))

    found = await read(keys[0])
    if len(keys) > 1 and not _has_any(found) and _has_any(text := await read(keys[1])):
        return text
    return found


def _has_any(found: KeyHistory) -> bool:
    """Return whether a key was there at any time."""
    return bool(found.changes) or found.first is not None


__all__ = ["key_history"]
