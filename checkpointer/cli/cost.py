"""Implement `checkpointer cost`: what a job costs in a month.

It computes that from a few numbers or from a real root.
"""

import math
from datetime import timedelta
from typing import Any

import click

from pyspark_checkpointer.admin import cost, measured_cost
from pyspark_checkpointer.admin.cost import BilledRequests, Month, Schedule
from pyspark_checkpointer.admin.forecast import forecast
from pyspark_checkpointer.admin.forecast_operators import OperatorLoad
from pyspark_checkpointer.cli import schemas
from pyspark_checkpointer.cli.cost_options import MAX_RATE, job_options
from pyspark_checkpointer.cli.screen import print_facts, print_json, print_line, print_table
from pyspark_checkpointer.cli.table import TextColumn
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.display import count, duration, size
from pyspark_checkpointer.storage.registry import PriceClass, StoreCosts

_COLUMNS = (
    TextColumn("REQUESTS"),
    TextColumn("EACH BATCH", right=True),
    TextColumn("EACH START", right=True),
    TextColumn("EACH CLEANUP", right=True),
    TextColumn("A MONTH", right=True),
    TextColumn("USD", right=True),
)
_CLASSES: dict[PriceClass, str] = {"put": "PUT, POST, LIST", "get": "GET, HEAD", "delete": "DELETE"}


def _forecast(
    as_json: bool,
    maps: list[OperatorLoad],
    tables: list[OperatorLoad],
    max_chain: int | None,
    last: int,
    kind: str | None,
    **numbers: Any,
) -> None:
    """Print what a job costs that options describe."""
    if not maps and not tables:
        raise click.UsageError(
            "what a batch writes is not known: give --map, --table or ROOT (`-` for the root in CHECKPOINTER_ROOT)",
            click.get_current_context(),
        )
    schedule = _schedule(None, "nothing says how often a batch comes", **numbers)
    batch = forecast([*maps, *tables], 10 if max_chain is None else max_chain)
    store = cost.STORES[kind or next(iter(cost.STORES))]
    _print(cost.month(batch, schedule, store), schedule, store, numbers["prices"], as_json, None, None)


@verb(
    "cost",
    "cost --map state=50MB,change=200kB --every 30s --keep-last 100",
    "cost --table state=20GB,change=2MB,partitions=64 --every 1min --keep-last 100 --price put=0.0055",
    "cost s3://bucket/jobs/orders --keep-last 100",
    without_root=_forecast,
    note="""Without ROOT, describe each operator by one --map or --table: `state` is its stored size, `change` the size
of what a batch changes, `changed` the number of partitions that a batch changes (by default all). A SIZE is 500, 20kB,
5MB or 3GiB; a DURATION is 90s, 30min, 12h, 7d, or 1d12h. A month has 730 hours. The default prices are examples: list
prices of one region, noted in January 2025. Pass your own with --price. Reads of tables by the job, and requests of
Spark itself, are not counted.""",
)
@job_options
def command(
    store: Opened,
    maps: list[OperatorLoad],
    tables: list[OperatorLoad],
    max_chain: int | None,
    last: int,
    kind: str | None,
    **numbers: Any,
) -> None:
    """Compute what a job costs in a month: requests, bytes and money.

    With ROOT, it takes the requests, the bytes and the rate of batches from the newest checkpoints. These do not show
    the reads of Spark's tasks. Without --keep-last nothing is ever deleted, and the store grows.
    """
    if maps or tables or max_chain is not None:
        raise click.UsageError(
            "--map, --table and --max-chain cannot be combined with ROOT: leave out one or the other",
            click.get_current_context(),
        )
    found = store.read(lambda session: measured_cost.measure(session, last))
    span = duration(found.span // timedelta(microseconds=1))
    why = f"checkpoints made within {span} do not tell how often a batch comes"
    schedule = _schedule(found.batches_per_hour, why, **numbers)
    costs = cost.STORES[kind] if kind else cost.costs_of(store.ck.root)
    month = cost.month(found.batch, schedule, costs, found.present)
    _print(month, schedule, costs, numbers["prices"], store.json, store.ck.root, found.checkpoints)


def _schedule(
    measured: float | None,
    why_none: str,
    every: timedelta | None,
    batches_per_hour: float | None,
    starts_per_day: float,
    keep_last: int | None,
    cleanups_per_day: float,
    grace: timedelta,
    prices: object,
) -> Schedule:
    """Return how often things are done; `measured` is the rate of a root's batches.

    `why_none` tells why there is no such rate.
    """
    context = click.get_current_context()
    if every is not None and batches_per_hour is not None:
        raise click.UsageError("--every and --batches-per-hour say the same: leave one out", context)
    for name, number in (
        ("starts", starts_per_day),
        ("cleanups", cleanups_per_day),
        ("batches", batches_per_hour or 0),
    ):
        if math.isnan(number):  # which no range of click refuses
            raise click.UsageError(f"the number of {name} is no number: write it like 24", context)
    if every is not None:
        batches_per_hour = 3600 / max(every.total_seconds(), 3600 / MAX_RATE)
    rate = measured if batches_per_hour is None else batches_per_hour
    if rate is None:
        raise click.UsageError(f"{why_none}: give --every 30s, or --batches-per-hour", context)
    return Schedule(rate, starts_per_day, keep_last, cleanups_per_day, grace)


def _print(
    month: Month,
    schedule: Schedule,
    store: StoreCosts,
    prices: dict[PriceClass, float],
    as_json: bool,
    root: str | None,
    checkpoints: int | None,
) -> None:
    """Print a month."""
    known = {**store.prices, **prices}
    money = month.money(known)
    total = sum(money.values())
    if as_json:
        print_json(_document(month, store, known, root, checkpoints))
        return
    facts: dict[str, object] = {}
    if root is not None:
        facts = {"root": root, "measured": count(checkpoints or 0, "checkpoint")}
    cleanup = f"keep the last {schedule.keep_last}, {month.cleanups:,.0f} cleanups" if schedule.keep_last else None
    kept = f"{size(round(month.kept))} in {count(round(month.objects), 'object')}"
    print_facts(
        facts
        | {
            "batches a month": f"{month.batches:,.0f}",
            "retention": cleanup or "nothing is deleted: the store grows, see --keep-last",
            "a batch writes": size(round(month.bytes_per_batch)),
            "written a month": size(round(month.written)),
            "kept": kept if schedule.keep_last else f"{kept}, after a month",
        }
    )
    print_line()
    print_table(
        _COLUMNS,
        [
            *(
                (
                    name,
                    *(_count(of, price_class) for of in (month.per_batch, month.per_start, month.per_cleanup)),
                    f"{getattr(month.requests, price_class):,.0f}",
                    f"{money[price_class]:,.2f}",
                )
                for price_class, name in _CLASSES.items()
            ),
            ("bytes kept", None, None, None, size(round(month.kept)), f"{money['gb']:,.2f}"),
            ("total", None, None, None, None, f"{total:,.2f}"),
        ],
    )
    print_line()
    print_line(
        f"Prices: {known['put']:g} for 1,000 PUT, POST, LIST; {known['get']:g} for 1,000 GET; {known['delete']:g} for "
        f"1,000 DELETE; {known['gb']:g} for a GB and month"
    )
    print_line(f"They are examples in USD: {store.name}{', apart from yours' if prices else ''}.")
    print_line("Pass your own prices: --price put=0.0055 replaces one.")


def _count(requests: BilledRequests, price_class: PriceClass) -> str:
    return f"{getattr(requests, price_class):,.1f}".removesuffix(".0")


def _document(
    month: Month, store: StoreCosts, prices: dict[PriceClass, float], root: str | None, checkpoints: int | None
) -> schemas.Forecast:
    money = month.money(prices)
    requests: list[schemas.RequestCost] = [
        {
            "price_class": price_class,  # type: ignore[typeddict-item]  # all but "gb"
            "each_batch": round(getattr(month.per_batch, price_class), 3),
            "each_start": round(getattr(month.per_start, price_class), 3),
            "each_cleanup": round(getattr(month.per_cleanup, price_class), 3),
            "month": round(getattr(month.requests, price_class), 3),
            "price_per_1000": prices[price_class],
            "usd": round(money[price_class], 4),
        }
        for price_class in _CLASSES
    ]
    return {
        "root": root,
        "checkpoints": checkpoints,
        "batches": round(month.batches, 3),
        "cleanups": round(month.cleanups, 3),
        "requests": requests,
        "bytes_each_batch": round(month.bytes_per_batch),
        "written_bytes": round(month.written),
        "kept": {
            "bytes": round(month.kept),
            "objects": round(month.objects),
            "price_per_gb": prices["gb"],
            "usd": round(money["gb"], 4),
        },
        "prices": store.name,
        "usd": round(sum(money.values()), 4),
    }
