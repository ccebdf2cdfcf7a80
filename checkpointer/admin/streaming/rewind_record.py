"""Read and write the record that a rewind leaves in Spark's checkpoint.

Its path is `rewound/<number>/record.json`. A rewind writes it before it changes anything. The files that it cuts are
kept in the same folder, under the names that they had. So the next call can finish a rewind that was interrupted, and
undo one that was a mistake.
"""

import json
from dataclasses import asdict, dataclass

from pyspark_checkpointer.admin.streaming.log_edit import put_new
from pyspark_checkpointer.admin.streaming.log_plan import LogBeforeRewind
from pyspark_checkpointer.admin.streaming.offset_log import COMMITS, MAX_FILE, OFFSETS, read_file
from pyspark_checkpointer.errors import ConflictError, InvalidStateError, MalformedError
from pyspark_checkpointer.manifests.json_fields import Fields
from pyspark_checkpointer.manifests.model import FORMAT_VERSION, CheckpointId
from pyspark_checkpointer.storage.base import Store

REWOUND = "rewound/"


@dataclass(frozen=True, slots=True)
class RewindRecord:
    """One rewind. Its ids name checkpoints of the state."""

    number: int
    left: CheckpointId
    to: CheckpointId
    new: CheckpointId
    """The commit of the rewind. If it never became live, the rewind did not happen."""
    savepoint: str | None
    """The savepoint that keeps `left`; None where that has the same content as `to`."""
    undoes: int | None
    """The number of the rewind whose files come back."""
    names: tuple[str, ...]
    """The files of Spark's progress before the rewind."""

    @property
    def folder(self) -> str:
        """Return the folder of the record, and of the files that the rewind cuts."""
        return f"{REWOUND}{self.number:04d}/"

    @property
    def path(self) -> str:
        """Return the path of the record."""
        return f"{self.folder}record.json"

    def leads_to(self, committed: CheckpointId, to: CheckpointId) -> bool:
        """Return whether this rewind made `committed`, and its target is `to`."""
        return self.new == committed and to in (self.new, self.to)


async def write_record(store: Store, record: RewindRecord) -> None:
    """Write the record as a new file.

    Raises `ConflictError` where another rewind took the number.
    """
    ids = {key: str(getattr(record, key)) for key in ("left", "to", "new")}
    value = {"format_version": FORMAT_VERSION, **asdict(record), **ids}
    if not await put_new(store, record.path, json.dumps(value, indent=2).encode()):
        raise ConflictError(f"{store.url}: another rewind began meanwhile: call again once it has ended")


async def _numbers(store: Store) -> list[int]:
    """Return the numbers of all folders of rewinds, newest first."""
    names = [folder.split("/")[1] for folder in await store.folders(REWOUND)]
    # Folders of other names were put there by somebody else.
    return sorted((int(name) for name in names if name.isdecimal() and name == f"{int(name):04d}"), reverse=True)


async def next_number(store: Store) -> int:
    """Return the number for a new rewind, above all earlier numbers."""
    return 1 + max(await _numbers(store), default=0)


async def read_records(store: Store) -> list[RewindRecord]:
    """Return the rewinds that were begun on this checkpoint of Spark's, newest first."""
    found = [await read_record(store, number) for number in await _numbers(store)]
    return [record for record in found if record is not None]


async def read_record(store: Store, number: int) -> RewindRecord | None:
    """Return a rewind by its number; None where there is none, or it was withdrawn."""
    path = f"{REWOUND}{number:04d}/record.json"
    data = await read_file(store, path)
    try:
        return None if data is None else _decode(number, Fields.parse(f"{store.url}/{path}", data))
    # It is no damage of the store, but of a file in Spark's checkpoint, which a person can move away.
    except MalformedError as error:
        raise InvalidStateError(f"{error}: is no record of a rewind: move its folder out of {REWOUND}") from None


def _decode(number: int, fields: Fields) -> RewindRecord:
    """Return the record that a file has. Raises `MalformedError` where it has none."""
    savepoint, undoes = fields.take("savepoint"), fields.take("undoes")
    if savepoint is not None and not isinstance(savepoint, str):
        fields.fail("savepoint: expected a name or null")
    return RewindRecord(
        number=number,
        left=fields.id("left"),
        to=fields.id("to"),
        new=fields.id("new"),
        savepoint=savepoint,
        undoes=None if undoes is None else fields.check_integer("undoes", undoes, 1),
        names=tuple(map(str, fields.items("names"))),
    )


async def read_log_before(store: Store, record: RewindRecord) -> LogBeforeRewind:
    """Return Spark's progress as it was before a rewind.

    It has the files that were cut since.
    """
    found = {}
    for folder in (OFFSETS, COMMITS):
        for entry in await store.list(f"{record.folder}{folder}"):
            path = entry.path.removeprefix(record.folder)
            # Copies with a number behind their name are of a try that was repeated; only the plain name is what was
            # there before.
            if path.removeprefix(folder).isdecimal():
                found[path] = (await store.get(entry.path, limit=MAX_FILE)).data
    return LogBeforeRewind(record.names, found)
