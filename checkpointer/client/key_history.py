"""Return the history of one key, of a map or a table."""

import shlex
from typing import Any

from pyspark_checkpointer.checkpoint.ancestry import read_live_ancestry
from pyspark_checkpointer.checkpoint.key_history import KeyHistory, map_changes
from pyspark_checkpointer.checkpoint.restore import CheckpointReader, find_operator
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.codecs import kind_of
from pyspark_checkpointer.manifests.msgpack_values import unpack
from pyspark_checkpointer.manifests.tagged_json import to_json


async def key_history(
    reader: CheckpointReader, name: str, key: Any, after: CheckpointSelector | None, *, as_json: bool = False
) -> KeyHistory:
    """Return the history of a key up to the checkpoint of a reader.

    Values are JSON if asked for.
    """
    session = reader.session
    if (manifest := reader.manifest) is None:
        reader.operator(name)  # Raises, as nothing is committed.
    assert manifest is not None
    parent, manifests = await read_live_ancestry(session, after, CheckpointSelector("id", manifest.id))
    line = [*([] if parent is None else [parent]), *manifests]
    having = [manifest for manifest in line if name in manifest.operators]
    # One that was dropped has a history too.
    operator = find_operator((having or line)[-1].operators, name)
    kind = kind_of(operator)
    if kind == "table":
        from pyspark_checkpointer.table import key_history as tables  # pyarrow, only for those who use tables
        from pyspark_checkpointer.table.python_values import json_rows, python_rows

        shown = tables.newest_schema(name, parent, manifests)
        assert shown is not None
        key = tables.key_columns(name, key, shown)

        def row(rows: Any) -> Any:
            advice = f"`checkpointer history {shlex.quote(session.store.url)} {shlex.quote(name)} KEY` shows it"
            return next(json_rows(rows)) if as_json else python_rows(f"table {name!r}", rows, shown.key, advice)[0]

        first, changes = await tables.table_changes(session, key, name, shown, parent, manifests, row)
    elif kind == "map":
        value = (lambda packed: to_json(unpack(packed))) if as_json else unpack
        first, changes = await map_changes(session, name, key, parent, manifests, value)
    else:
        raise IllegalArgumentError(
            f"operator {name!r}: holds bytes of the job's own format, whose keys nobody else can read"
        )
    return KeyHistory(name, to_json(key) if as_json else key, line[0].id, parent is None, first, tuple(changes))


__all__ = ["key_history"]
