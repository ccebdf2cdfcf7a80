"""All totals in one computation over all the flights, by pandas: nothing here is shared with the streaming job."""

import io
from collections.abc import Hashable, Sequence

import pandas as pd

from examples.flights.data import SUMS, Day, Totals

State = dict[str, dict[Hashable, Totals]]
"""What the job keeps: "aircraft" by tail number, "months" by tail number and month. Flights without one have None."""


def batch_totals(days: Sequence[Day]) -> State:
    """The state that the job must have after `days`."""
    text = days[0].header + "".join(line for day in days for line in day.lines)
    columns = ["tailnum", "month", *SUMS.values()]
    flights = pd.read_csv(io.StringIO(text), usecols=columns, na_values="NA", keep_default_na=False)
    flights = flights.fillna(dict.fromkeys(SUMS.values(), 0)).astype(dict.fromkeys(SUMS.values(), "int64"))
    return {"aircraft": _sum(flights, ["tailnum"]), "months": _sum(flights, ["tailnum", "month"])}


def _sum(flights: pd.DataFrame, key: list[str]) -> dict[Hashable, Totals]:
    groups = flights.groupby(key, dropna=False)
    table = groups[list(SUMS.values())].sum().set_axis(list(SUMS), axis=1)
    table.insert(0, "flights", groups.size())
    found: dict[Hashable, Totals] = {}
    for *parts, total in zip(*(table.index.get_level_values(k) for k in key), table.to_dict("records"), strict=True):
        named = tuple(None if pd.isna(part) else part for part in parts)
        found[named if len(named) > 1 else named[0]] = {str(name): int(value) for name, value in total.items()}
    return found
