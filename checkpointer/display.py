"""Format values for people.

They become text, or the small HTML tables of notebooks, in which everything is escaped.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
_STEPS = ((86400, "d"), (3600, "h"), (60, "min"))


def size(count: int | None) -> str:
    """Return a number of bytes in binary units: 1.5 MiB.

    None, a size that was not read, is `?`.
    """
    if count is None:
        return "?"
    if count < 1024:
        return f"{count} B"
    power = 1
    while power < len(_UNITS) and count / 1024**power >= 1023.95:  # which is shown as 1024.0
        power += 1
    return f"{count / 1024**power:.1f} {_UNITS[power - 1]}"


def moment(at: datetime | None) -> str | None:
    """Return a time in UTC, to the second: 2026-01-31T03:00:00Z."""
    return None if at is None else at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def duration(microseconds: int | None) -> str:
    """Return a duration in the unit that leaves two or three digits.

    Longer durations are shown as minutes and seconds. None is `?`.
    """
    if microseconds is None:
        return "?"
    if microseconds < 1000:
        return f"{microseconds} µs"
    # From here on it would be rounded to 1000 ms.
    if microseconds < 999_500:
        return f"{microseconds / 1000:.0f} ms"
    # From here on it would be rounded to 60.0 s.
    if microseconds < 59_950_000:
        return f"{microseconds / 1_000_000:.1f} s"
    minutes, seconds = divmod(round(microseconds / 1_000_000), 60)
    return f"{minutes:,} min {seconds} s"


def age(at: datetime | None, now: datetime) -> str | None:
    """Return how long ago a time was, in the largest unit that fits."""
    if at is None:
        return None
    seconds = int((now - at).total_seconds())
    # The clock that wrote the time may be ahead of this one.
    if seconds < 0:
        return "in the future"
    for length, unit in _STEPS:
        if seconds >= length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago"


def count(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: 1 object, 2 objects."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def spread(numbers: Mapping[str, object] | None) -> str | None:
    """Return the minimum, the median and the maximum: 1/3/10."""
    return None if numbers is None else "/".join(str(numbers[name]) for name in ("minimum", "median", "maximum"))


_MAX_RANGES = 8
"""Ranges that are shown; a mark stands for the rest."""


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges: 0-2, 5, 7-9. Only the first few ranges are shown."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:_MAX_RANGES]]
    return ", ".join(shown) + (", …" if len(runs) > _MAX_RANGES else "")


def cut(text: object, limit: int = 100) -> str:
    """Return the beginning of a text on one line.

    Characters that a terminal would act on are escaped.
    """
    # Cut before it is escaped, so that no more of a long text is looked at. One character more tells whether it was
    # longer.
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text)[: limit + 1])
    return plain if len(plain) <= limit else f"{plain[: limit - 1]}…"


def names(items: Iterable[object]) -> str:
    """Return all names in a row, each as `cut` shows it."""
    return ", ".join(map(cut, items))


def some(items: Iterable[object], limit: int = 5) -> str:
    """Return the first items, and how many more there are: a, b and 3 more."""
    texts = list(map(cut, items))
    left = f" and {len(texts) - limit:,} more" if len(texts) > limit else ""
    return ", ".join(texts[:limit]) + left


_MAX_CELL = 200
"""Characters of a cell; a longer text is cut."""


def table(caption: str, titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table. Integers are aligned to the right; None is a dash."""
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def facts(caption: str, pairs: Mapping[str, object]) -> str:
    """Return an HTML table of names and values, one pair in a row."""
    return table(caption, ("", ""), pairs.items())


def note(text: str) -> str:
    """Return a text as an HTML paragraph."""
    return f"<p>{escape(text)}</p>"


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f'<td style="text-align: right">{value:,}</td>'
    text = "-" if value is None else str(value)
    return f"<td>{escape(text if len(text) <= _MAX_CELL else f'{text[:_MAX_CELL]}…')}</td>"
