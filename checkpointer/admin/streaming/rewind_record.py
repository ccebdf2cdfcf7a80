"""What a rewind notes in Spark's checkpoint before it changes anything: `rewound/<number>/record.json`.

Beside it is what the rewind cuts, under the names it had. So a rewind that was interrupted is finished by the next
call, and one that was a mistake can be undone.
"""

import json
from dataclasses import asdict, dataclass

from pyspark_checkpointer.admin.streaming.log_edit import put_new
from pyspark_checkpointer.admin.streaming.log_plan import Before
from pyspark_checkpointer.admin.streaming.offset_log import COMMITS, MAX_FILE, OFFSETS, read_file
from pyspark_checkpointer.errors import ConflictError, InvalidStateError, MalformedError
from pyspark_checkpointer.manifests.json_fields import Fields
from pyspark_checkpointer.manifests.model import FORMAT_VERSION, CheckpointId
from pyspark_checkpointer.storage.base import Store

REWOUND = "rewound/"


@dataclass(frozen=True, slots=True)
class Record:
    """One rewind. Ids are those of the state's checkpoints."""

    number: int
    left: CheckpointId
    to: CheckpointId
    new: CheckpointId
    """The commit that makes it so. If it never became live, the rewind did not happen."""
    savepoint: str | None
    """What keeps `left`; None where that has the same content as `to`."""
    undoes: int | None
    """The number of the rewind whose files come back."""
    names: tuple[str, ...]
    """The files of Spark's progress as it was."""

    @property
    def folder(self) -> str:
        return f"{REWOUND}{self.number:04d}/"

    @property
    def path(self) -> str:
        return f"{self.folder}record.json"

    def goes(self, committed: CheckpointId, to: CheckpointId) -> bool:
        """Return whether this one is what is committed now, and leads to `to`."""
        return self.new == committed and to in (self.new, self.to)


async def write_record(store: Store, record: Record) -> None:
    """Raises `ConflictError` where another rewind took the number."""
    ids = {key: str(getattr(record, key)) for key in ("left", "to", "new")}
    value = {"format_version": FORMAT_VERSION, **asdict(record), **ids}
    if not await put_new(store, record.path, json.dumps(value, indent=2).encode()):
        raise ConflictError(f"{store.url}: another rewind began meanwhile: call again once it has ended")


async def _numbers(store: Store) -> list[int]:
    """Of the folders that there are, newest first."""
    names = [folder.split("/")[1] for folder in await store.folders(REWOUND)]
    return sorted((int(name) for name in names if name.isdecimal() and name == f"{int(name):04d}"), reverse=True)


async def next_number(store: Store) -> int:
    """Above those of all rewinds, whether they happened or not."""
    return 1 + max(await _numbers(store), default=0)


async def read_records(store: Store) -> list[Record]:
    """Return the rewinds that were begun on this checkpoint of Spark's, newest first."""
    found = [await read_record(store, number) for number in await _numbers(store)]
    return [record for record in found if record is not None]


async def read_record(store: Store, number: int) -> Record | None:
    """Return a rewind by its number; None where there is none, or it was withdrawn."""
    path = f"{REWOUND}{number:04d}/record.json"
    data = await read_file(store, path)
    try:
        return None if data is None else _decode(number, Fields.parse(f"{store.url}/{path}", data))
    except MalformedError as error:
        raise InvalidStateError(f"{error}: is no record of a rewind: move its folder out of {REWOUND}") from None


def _decode(number: int, fields: Fields) -> Record:
    savepoint, undoes = fields.take("savepoint"), fields.take("undoes")
    if savepoint is not None and not isinstance(savepoint, str):
        fields.fail("savepoint: expected a name or null")
    return Record(
        number=number,
        left=fields.id("left"),
        to=fields.id("to"),
        new=fields.id("new"),
        savepoint=savepoint,
        undoes=None if undoes is None else fields.check_integer("undoes", undoes, 1),
        names=tuple(map(str, fields.items("names"))),
    )


async def read_before(store: Store, record: Record) -> Before:
    """Spark's progress as it was before a rewind."""
    found = {}
    for folder in (OFFSETS, COMMITS):
        for entry in await store.list(f"{record.folder}{folder}"):
            path = entry.path.removeprefix(record.folder)
            if path.removeprefix(folder).isdecimal():
                found[path] = (await store.get(entry.path, limit=MAX_FILE)).data
    return Before(record.names, found)
