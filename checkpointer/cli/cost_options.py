"""Define and parse the options of `checkpointer cost`: the job and its prices."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from pyspark_checkpointer.admin import cost
from pyspark_checkpointer.admin.forecast_operators import OperatorLoad
from pyspark_checkpointer.cli.arguments import parse_duration
from pyspark_checkpointer.storage.registry import PriceClass

_PRICES: dict[str, PriceClass] = {"put": "put", "get": "get", "delete": "delete", "gb": "gb"}

_POWERS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kmgt]i?)?b?", re.IGNORECASE)

_MOST_BYTES = 1 << 60
"""Bytes of an operator, and of what a batch changes, at most."""

_MOST = 10_000
"""Partitions and tasks of an operator, at most."""

_COUNTS = ("partitions", "changed", "tasks", "executors")
_PARTITIONS = {"map": 8, "table": 16}
"""The default numbers of partitions of `KeyedState` and `state.table`."""

MAX_RATE = 1_000_000
"""Batches in an hour, and starts and cleanups in a day, at most."""


def _size(text: str) -> int | None:
    """Return the bytes that 500, 20kB, 5MB or 3GiB are; None for anything else."""
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    number, unit = found[1], (found[2] or "").lower()
    size = float(number) * (_POWERS | _BINARY)[unit]
    return int(size) if size <= _MOST_BYTES else None


def _loads(context: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> list[OperatorLoad]:
    """Return the operators that --map or --table describe."""
    kind = str(parameter.name).removesuffix("s")

    def fail(text: str, why: str) -> click.BadParameter:
        example = "state=50MB,change=200kB" if kind == "map" else "state=20GB,change=2MB,partitions=64"
        return click.BadParameter(f"{text!r:.80}: {why}: write it like --{kind} {example}", context, parameter)

    def parse_one(text: str) -> OperatorLoad:
        values: dict[str, int] = {}
        for part in text.split(","):
            name, _, value = part.partition("=")
            known = ("state", "change", *(_COUNTS if kind == "table" else _COUNTS[:2]))
            if name not in known:
                raise fail(text, f"{name!r} is none of {', '.join(known)}")
            # What is no count is a size, which has a unit.
            is_number = value.isascii() and value.isdigit() and len(value) <= len(str(_MOST))
            found = (int(value) if is_number else None) if name in _COUNTS else _size(value)
            if found is None or found < 1 or (name in _COUNTS and found > _MOST):
                what = f"a number from 1 to {_MOST}" if name in _COUNTS else "a size from 1 byte to 1 EiB, such as 20kB"
                raise fail(text, f"{name}={value:.40}: expected {what}")
            values[name] = found
        if missing := [name for name in ("state", "change") if name not in values]:
            raise fail(text, f"{' and '.join(missing)} is missing")
        partitions = values.get("partitions", _PARTITIONS[kind])
        # Keys are spread by a hash, so that a batch changes every partition unless the job is known to do otherwise.
        changed = values.get("changed", partitions)
        if changed > partitions:
            raise fail(text, f"changed={changed} of {partitions} partitions: give partitions={changed} or more")
        more = {name: values[name] for name in ("tasks", "executors") if name in values}
        return OperatorLoad(kind == "table", values["state"], values["change"], partitions, changed, **more)

    return [parse_one(text) for text in texts]


def _prices(context: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> dict[PriceClass, float]:
    """Return the prices that --price sets."""
    found: dict[PriceClass, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            price = float(value)
        except ValueError:
            price = -1
        price_class = _PRICES.get(name)
        if price_class is None or not 0 <= price < 1e9:
            raise click.BadParameter(
                f"{text!r}: write put=0.005, get=0.0004 or delete=0 (for 1,000 requests), or gb=0.023 (for a month)",
                context,
                parameter,
            )
        found[price_class] = price
    return found


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what a job does, and what it pays."""
    whole = click.IntRange(min=1)
    options = [
        click.option(
            "--map",
            "maps",
            multiple=True,
            metavar="STATE,CHANGE[,…]",
            callback=_loads,
            help="A map: state=SIZE,change=SIZE[,partitions=8][,changed=N].",
        ),
        click.option(
            "--table",
            "tables",
            multiple=True,
            metavar="STATE,CHANGE[,…]",
            callback=_loads,
            help="A table: state=SIZE,change=SIZE[,partitions=16][,changed=N][,tasks=200][,executors=1].",
        ),
        click.option("--every", metavar="DURATION", callback=parse_duration, help="The time from batch to batch."),
        click.option(
            "--batches-per-hour",
            type=click.FloatRange(min=0, max=MAX_RATE, min_open=True),
            help="The number of batches in an hour, in place of --every.",
        ),
        click.option(
            "--max-chain", type=click.IntRange(min=2), help="The `max_chain` of the `Checkpointer`; by default 10."
        ),
        click.option("--keep-last", type=whole, metavar="N", help="How many checkpoints cleanup keeps."),
        click.option(
            "--cleanups-per-day",
            type=click.FloatRange(min=0, max=MAX_RATE, min_open=True),
            default=24,
            show_default=True,
            help="How often cleanup runs each day, with --keep-last.",
        ),
        click.option(
            "--grace",
            metavar="DURATION",
            default="1h",
            show_default=True,
            callback=parse_duration,
            help="The grace period of cleanup.",
        ),
        click.option(
            "--starts-per-day",
            type=click.FloatRange(min=0, max=MAX_RATE),
            default=1,
            show_default=True,
            help="How often the job starts each day. Each start restores.",
        ),
        click.option(
            "--store",
            "kind",
            type=click.Choice([*cost.STORES]),
            help=f"Use the prices and limits of this store; by default that of ROOT, or {next(iter(cost.STORES))}.",
        ),
        click.option(
            "--price",
            "prices",
            multiple=True,
            metavar="NAME=USD",
            callback=_prices,
            help="Your own price: put, get or delete for 1,000 requests, gb for a GB and month.",
        ),
        click.option(
            "--last",
            type=whole,
            default=100,
            show_default=True,
            metavar="N",
            help="How many of the newest checkpoints of ROOT to measure.",
        ),
    ]
    for option in reversed(options):  # the option that is added last is the first one in the help
        command = option(command)
    return command
