"""Values as notebooks show them: small tables in HTML, in which everything is escaped."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from manifests import measures
from manifests.model import Manifest
from manifests.words import moment, size

_UNSHOWN = 200
"""Characters of a text beyond which it is cut."""


def table(caption: str, titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows under their titles; integers to the right, None as a dash."""
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def facts(caption: str, pairs: Mapping[str, object]) -> str:
    """Names and values, one pair in a row."""
    return table(caption, ("", ""), pairs.items())


def note(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f'<td style="text-align: right">{value:,}</td>'
    text = "-" if value is None else str(value)
    return f"<td>{escape(text if len(text) <= _UNSHOWN else f'{text[:_UNSHOWN]}…')}</td>"


def manifest_html(manifest: Manifest) -> str:
    """The operators of a checkpoint. Sizes of those with very many partitions are known once their chains are."""
    rows = []
    for name, operator in sorted(manifest.operators.items()):
        held: tuple[object, ...] = (None, None, "?", "?")
        if measures.is_loaded(operator):
            of = measures.operator_size(operator)
            held = (of.chain and of.chain.maximum, of.records, size(of.snapshot_bytes), size(of.delta_bytes))
        rows.append((name, operator.codec, measures.partitions(operator), *held))
    epoch = "" if manifest.epoch is None else f", epoch {manifest.epoch}"
    made = "" if manifest.created is None else f", {moment(manifest.created)}"
    titles = ("operator", "codec", "partitions", "longest chain", "records", "snapshots", "deltas")
    return table(f"Checkpoint {manifest.id}{epoch}{made}", titles, rows)
