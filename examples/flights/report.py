"""What is in the state at the end, compared with one computation over all the flights, and with what was told."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from checkpointer import Checkpointer, KeyedState
from checkpointer.sync import Restored
from examples.flights.data import Day
from examples.flights.expected import State
from examples.flights.outcomes import Outcomes, Places
from examples.flights.pauses import SWAPPED, UPLOADED, UPLOADING
from examples.flights.story import console
from manifests import layout
from manifests.model import Artifact, CheckpointId, Manifest

KILLED = {UPLOADING: "second try", UPLOADED: "second try", SWAPPED: "then killed"}
"""What the table says about a batch in which the job was killed."""


LATELY = 10
"""Batches at the end of the year whose average is told."""


@dataclass(frozen=True, slots=True)
class Row:
    """A checkpoint as it was found. Sizes in bytes: the objects it wrote, and its manifest."""

    manifest: Manifest
    flights: int
    written: int
    manifest_size: int

    @property
    def partitions(self) -> str:
        """How many partitions each operator has."""
        return " + ".join(str(operator.partitions) for _, operator in sorted(self.manifest.operators.items()))

    @property
    def longest_chain(self) -> int:
        """The most artifacts that one partition is made of."""
        return max(len(chain) for op in self.manifest.operators.values() for chain in op.chains.values())


@dataclass(slots=True)
class Findings:
    rows: list[Row]
    state: State
    full_size: int
    """Bytes that the last state takes when it is saved as a whole."""
    wrong: list[str] = field(default_factory=list)


def check(places: Places, batches: list[list[Day]], expected: State, outcomes: Outcomes) -> Findings:
    """Restore every checkpoint and compare its flights, and every total in the last one."""
    with Checkpointer(places.state) as checkpointer:
        rows = [_read(places, checkpointer, found) for found in checkpointer.list_checkpoints()]
        maps = _maps(checkpointer.restore())
    findings = Findings(rows, {name: dict(state) for name, state in maps.items()}, _full_size(maps))
    findings.wrong += _compare_flights(rows, batches)
    for name, totals in expected.items():
        findings.wrong += _compare_totals(name, findings.state.get(name, {}), totals)
    findings.wrong += _compare_story(places, rows, outcomes)
    return findings


def _read(places: Places, checkpointer: Checkpointer, checkpoint: CheckpointId) -> Row:
    restored = checkpointer.restore(checkpoint)
    assert restored is not None
    assert restored.manifest is not None
    return Row(
        manifest=restored.manifest,
        flights=sum(total["flights"] for total in restored.keyed("aircraft").values()),
        written=_written(restored.manifest),
        manifest_size=(places.state / layout.manifest(checkpoint)).stat().st_size,
    )


def _maps(restored: Restored | None) -> dict[str, KeyedState]:
    return {name: restored.keyed(name) for name in restored.operators} if restored else {}


def _full_size(maps: dict[str, KeyedState]) -> int:
    """Saved to another store, which knows nothing of it, a state is written as a whole."""
    with Checkpointer("memory://flights-in-full") as elsewhere:
        with elsewhere.begin() as copy:
            for name, state in maps.items():
                copy.save(name, state)
        return sum({a.path: a.size for a in _artifacts(elsewhere.load_manifest(copy.id))}.values())


def _written(manifest: Manifest) -> int:
    """Bytes of the objects that a checkpoint wrote itself: what it shares with older ones carries their ids."""
    own = {a.path: a.size for a in _artifacts(manifest) if layout.owner(a.path) == manifest.id}
    return sum(own.values())


def _artifacts(manifest: Manifest) -> Iterator[Artifact]:
    for operator in manifest.operators.values():
        for chain in operator.chains.values():
            yield from chain


def _compare_flights(rows: list[Row], batches: list[list[Day]]) -> list[str]:
    wrong, flights = [], 0
    for row, batch in zip(rows, batches, strict=False):
        flights += sum(len(day.lines) for day in batch)
        if row.flights != flights:
            wrong.append(f"checkpoint {row.manifest.id}: {row.flights:,} flights, not {flights:,}")
    return wrong[:1]


def _compare_totals(name: str, found: Mapping[Any, Any], expected: Mapping[Any, Any]) -> list[str]:
    differ = [key for key in expected.keys() | found.keys() if found.get(key) != expected.get(key)]
    examples = sorted(differ, key=str)[:3]
    lines = [f"{name} {key}: {found.get(key)}, not {expected.get(key)}" for key in examples]
    return [f"{name}: {len(differ):,} of {len(expected):,} totals differ", *lines] if differ else []


def _compare_story(places: Places, rows: list[Row], outcomes: Outcomes) -> list[str]:
    """What did not happen as it was told."""
    every = list(range(len(outcomes.batches)))
    calls = Counter(every)
    calls.update(batch for point, batch in outcomes.stops if point != SWAPPED)
    skipped = [batch for point, batch in outcomes.stops if point == SWAPPED]
    told: list[tuple[str, object, object]] = [
        ("batches with a checkpoint", [row.manifest.epoch for row in rows], every),
        ("batches that Spark recorded", places.spark_batches(), every),
        ("surplus calls of update(), by batch", dict(outcomes.calls - calls), {}),
        ("missing calls of update(), by batch", dict(calls - outcomes.calls), {}),
        ("batches that were skipped", outcomes.skipped, skipped),
        ("batches whose flights are not those of their files", outcomes.miscounted, []),
    ]
    return [f"{what}: {found}, not {expected}" for what, found, expected in told if found != expected]


def show(findings: Findings, outcomes: Outcomes) -> None:
    """The table of checkpoints, what they cost, and how the comparison came out."""
    if findings.rows:
        console.print()
        console.print(_table(findings.rows, outcomes))
        lately = findings.rows[-LATELY:]
        console.print(
            f"\n{len(findings.rows)} checkpoints of {' + '.join(sorted(findings.state))}: "
            f"each was restored just now, and its flights counted.\nThe last {len(lately)} "
            f"wrote {_mean(row.written + row.manifest_size for row in lately):,} bytes on average, "
            f"{_mean(row.manifest_size for row in lately):,} of them the manifest; "
            f"a full copy takes {findings.full_size:,}."
        )
    for line in findings.wrong:
        console.print(f"[bold red]wrong[/]  {escape(line)}")
    if not findings.wrong:
        aircraft, months = findings.state["aircraft"], findings.state["months"]
        console.print(
            f"{sum(total['flights'] for total in aircraft.values()):,} flights, {len(aircraft):,} aircraft "
            f"(those without a tail number count as one), {len(months):,} aircraft and months:\n"
            "every total is the same as in one computation over all the flights at once."
        )


def _mean(sizes: Iterable[int]) -> int:
    return round(fmean(sizes))


def _table(rows: list[Row], outcomes: Outcomes) -> Table:
    """The first two checkpoints, those of the killed batches, and the last one."""
    stops = {batch: point for point, batch in outcomes.stops}
    table = Table(box=box.SIMPLE_HEAD, padding=0) if console.is_terminal else Table(box=box.ASCII)
    for heading in ("checkpoint", "epoch", "UTC", "partitions"):
        table.add_column(heading, no_wrap=True)
    for heading in ("chain", "written"):
        table.add_column(heading, no_wrap=True, justify="right")
    table.add_column("")
    shown = {0, 1, *stops, len(rows) - 1}
    for number, row in enumerate(rows):
        if number in shown:
            table.add_row(
                str(row.manifest.id),
                str(row.manifest.epoch),
                f"{row.manifest.created:%H:%M:%S}",
                row.partitions,
                str(row.longest_chain),
                f"{row.written + row.manifest_size:,}",
                KILLED[stops[number]] if number in stops else "",
            )
        elif number - 1 in shown:
            table.add_row("...")
    return table
