"""Read the state at the end: restore every checkpoint, and read everything in the last one."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow.parquet as pq

from examples.flights.data import ADDED, KEYS
from examples.flights.expected import State, Values
from examples.flights.outcomes import Places
from examples.flights.process import JobProcess, Limit
from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import Artifact, CheckpointId, Manifest


@dataclass(frozen=True, slots=True)
class Row:
    """A checkpoint as it was found: the flights that each operator counted, and its bytes."""

    manifest: Manifest
    flights: dict[str, int]
    written: int
    manifest_size: int

    @property
    def partitions(self) -> str:
        """The number of partitions of each operator."""
        return " + ".join(str(operator.partitions) for _, operator in sorted(self.manifest.operators.items()))

    @property
    def longest_chain(self) -> int:
        """The most artifacts of one partition."""
        return max(len(chain) for op in self.manifest.operators.values() for chain in op.chains.values())


@dataclass(frozen=True, slots=True)
class Found:
    rows: list[Row]
    state: State
    full_size: int
    """Bytes that the last state takes when it is written as a whole."""


def read_maps(places: Places, limit: Limit) -> Found:
    """Read the mappings of the first job. They need no Spark."""
    sizes = _manifest_sizes(places)
    with Checkpointer(places.state) as checkpointer:
        rows = []
        for checkpoint in checkpointer.list_checkpoints():
            maps = _maps(checkpointer, checkpoint)
            flights = {name: sum(total["flights"] for total in state.values()) for name, state in maps.items()}
            rows.append(_row(sizes, checkpointer.load_manifest(checkpoint), flights))
        last = _maps(checkpointer)
    return Found(rows, {name: dict(state) for name, state in last.items()}, _full_size(last))


def read_tables(places: Places, limit: Limit) -> Found:
    """Read the tables of the second job in another process, with a Spark of its own."""
    flights: dict[str, dict[str, int]] = {}
    arguments = ["--root", places.state, "--output", str(places.copy)]
    with JobProcess("examples.flights.read_tables", arguments, places.log("read"), limit) as reader:
        for event in reader.events():
            if event["event"] == "restored":
                flights[event["checkpoint"]] = event["flights"]
    with Checkpointer(places.state) as checkpointer:
        manifests = [checkpointer.load_manifest(checkpoint) for checkpoint in checkpointer.list_checkpoints()]
    sizes = _manifest_sizes(places)
    rows = [_row(sizes, manifest, flights.get(str(manifest.id), {})) for manifest in manifests]
    size = sum(path.stat().st_size for path in places.copy.rglob("*.parquet"))
    return Found(rows, tables_state({name: pq.read_table(places.copy / name).to_pylist() for name in KEYS}), size)


def tables_state(tables: Mapping[str, list[Values]]) -> State:
    """Return the rows of tables by key, and the sums of their columns. A key of several columns is a tuple."""
    state: State = {}
    for name, rows in tables.items():
        state[name] = {_key(name, row): {k: v for k, v in row.items() if k not in KEYS[name]} for row in rows}
    state["totals"] = {
        name: {column: sum(row[column] or 0 for row in rows) for column in ("flights", *ADDED)}
        for name, rows in tables.items()
    }
    return state


def _key(table: str, row: Values) -> Hashable:
    first, *others = (row[column] for column in KEYS[table])
    return (first, *others) if others else first


def _manifest_sizes(places: Places) -> dict[str, int]:
    return {found.path: found.size for found in places.listed(object_paths.MANIFESTS)}


def _row(sizes: Mapping[str, int], manifest: Manifest, flights: dict[str, int]) -> Row:
    return Row(manifest, flights, _written(manifest), sizes[object_paths.manifest(manifest.id)])


def _maps(checkpointer: Checkpointer, checkpoint: CheckpointId | None = None) -> dict[str, KeyedState]:
    restored = checkpointer.restore(checkpoint)
    return {name: restored.keyed(name) for name in restored.operators} if restored else {}


def _full_size(maps: dict[str, KeyedState]) -> int:
    """Return the bytes of the whole state, saved to another store without older checkpoints."""
    with Checkpointer("memory://flights-in-full") as elsewhere:
        with elsewhere.begin() as copy:
            for name, state in maps.items():
                copy.save(name, state)
        return sum({a.path: a.size for a in _artifacts(elsewhere.load_manifest(copy.id))}.values())


def _written(manifest: Manifest) -> int:
    """Return the bytes of the objects that a checkpoint wrote. Those that it shares carry the ids of older ones."""
    own = {a.path: a.size for a in _artifacts(manifest) if object_paths.owner(a.path) == manifest.id}
    return sum(own.values())


def _artifacts(manifest: Manifest) -> Iterator[Artifact]:
    for operator in manifest.operators.values():
        for chain in operator.chains.values():
            yield from chain
