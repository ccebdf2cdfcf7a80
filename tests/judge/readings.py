"""What the judge and the library say that a store holds, made comparable."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.errors import CheckpointError
from tests.judge import reader
from tests.judge.reader.files import python


def shown(value: Any) -> str:
    """A text that is equal for equal values of one type, zone, fold, scale, sign and bits alone."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    try:
        return _shown(value)
    finally:
        sys.setrecursionlimit(before)


def _shown(value: Any) -> str:
    kind = type(value).__name__
    match value:
        case dict():
            return f"dict({', '.join(f'{_shown(key)}: {_shown(item)}' for key, item in value.items())})"
        case list() | tuple():
            return f"{kind}({', '.join(map(_shown, value))})"
        case set() | frozenset():
            return f"{kind}({', '.join(sorted(map(_shown, value)))})"
        case float():
            return "nan" if value != value else value.hex()
    return f"{kind} {value!r}"


def _rows(rows: Iterable[Mapping[str, Any]], schema: Any) -> list[Any]:
    either = {str(column["name"]) for column in schema["columns"] if column["role"] in ("sum", "min", "max")}
    return sorted(
        (
            shown({k: 0.0 if v == 0 and k in either and isinstance(v, float) else v for k, v in row.items()})
            for row in rows
        ),
    )


def _map(items: Iterable[tuple[Any, Any]]) -> list[Any]:
    return sorted(((shown(key), shown(value)) for key, value in items))


def judged(root: Path) -> Any:
    """What the judge reads; None if it refuses."""
    try:
        found = reader.read(root)
    except (reader.Refused, reader.Missing):
        return None
    content: dict[str, Any] = {}
    for name, operator in found["operators"].items():
        held = operator["content"]
        match operator["kind"]:
            case "map":
                held = _map(held)
            case "table":
                held = _rows(held, operator["schema"])
        content[name] = (operator["partitions"], held)
    prepared = found["prepared"] and found["prepared"]["id"]
    points = {name: (point["id"], point["created"]) for name, point in found["savepoints"].items()}
    told = [found[name] for name in ("epoch", "created", "positions", "watermark", "properties", "clock")]
    return found["id"], shown(told), content, prepared, points


def library(root: Path) -> Any:
    """What the library reads; None if it refuses. Any other exception goes on."""
    with Checkpointer(str(root)) as client:
        try:
            return _library(client)
        except CheckpointError:
            return None


def _library(client: Checkpointer) -> Any:
    restored = client.restore()
    points = {point.name: (str(point.id), point.created) for point in client.savepoints()}
    if restored is None:
        return None, shown([None, None, {}, None, {}, None]), {}, None, points
    prepared = None if restored.prepared is None else str(restored.prepared.id)
    content: dict[str, Any] = {}
    for name, operator in (restored.manifest.operators if restored.manifest else {}).items():
        held: Any
        if operator.codec == "msgpack+zstd":
            held = _map(restored.keyed(name).items())
        elif operator.codec == "parquet":
            table = restored.table(name)
            columns = {column: list(map(python, table[column])) for column in table.column_names}
            held = _rows(
                (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)), operator.schema
            )
        else:
            view = restored.operator(name)
            held = {partition: view.partition(partition) for partition in view.partitions}
        content[name] = (operator.partitions, held)
    told = [
        restored.epoch,
        restored.created,
        restored.positions,
        restored.watermark,
        restored.properties,
        restored.clock,
    ]
    return restored.id and str(restored.id), shown(told), content, prepared, points


def verified(root: Path) -> bool:
    """Whether the library's verification of the committed checkpoint finds nothing."""
    with Checkpointer(str(root)) as client:
        try:
            latest = client.read_latest()
            return latest is None or bool(client.verify(latest))
        except CheckpointError:
            return False
