"""Parse and print the YAML of a journal: Winlogbeat's format below a comment.

The comment has the digest of the rest. A file with a digest is checked against it, so that a torn file is found even if
it still parses. A file without a digest, as Winlogbeat writes it, is only parsed. Unknown fields are kept.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, NoReturn

import yaml

from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError, MalformedError
from pyspark_checkpointer.manifests.digest import check_digest, sha256
from pyspark_checkpointer.manifests.errors import BAD_INPUT
from pyspark_checkpointer.manifests.json_text import format_time
from pyspark_checkpointer.manifests.shown import show

MAX_FILE_BYTES = 1 << 20
"""Size of the largest file that is read or written."""

MAX_INTEGER_CHARACTERS = 200
"""The most characters of an integer that is read, in any notation of YAML."""


@dataclass(frozen=True, slots=True)
class EventLogState:
    """The last event of a log that was processed.

    `timestamp` is in UTC, with microseconds.
    """

    name: str
    record_number: int
    timestamp: datetime
    other: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Fields of this event that another writer added, such as Winlogbeat's `bookmark`."""


@dataclass(frozen=True, slots=True)
class JournalContent:
    """The content of a file.

    `states` has the states by the name of the log. `other` has unknown fields at the top of the file. `unreadable` has
    entries that are no states.
    """

    states: Mapping[str, EventLogState]
    other: Mapping[str, Any]
    unreadable: tuple["Unreadable", ...] = ()


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An entry of the file that is no state.

    Its fields are written again as they were read.
    """

    fields: Mapping[str, Any]
    why: str = field(compare=False)
    """The reason why the entry is no state, with its place in the file.

    The next write of the file may move the entry.
    """

    @property
    def name(self) -> str:
        """The name of its event log; empty if that is the field that cannot be read."""
        name = self.fields["name"]
        return name if isinstance(name, str) else ""


_SEAL = b"# sha256 %s of all below; take this line away when you edit the file\n"
_SEALED = re.compile(_SEAL % rb"(?P<digest>[0-9a-f]{64})")


_TEXT = "tag:yaml.org,2002:str"
_MARKS = ("tag:yaml.org,2002:value", "tag:yaml.org,2002:merge")
"""The tags of a plain `=` and `<<`."""

_TIME = re.compile(r"-?[0-9]{4,}-[0-9]{2}-[0-9]{2}")

_FIELDS = ("name", "record_number", "timestamp")


class _Dumper(yaml.SafeDumper):
    """A YAML writer of times and of text with control characters.

    It writes times in RFC 3339. It writes text with control characters in the one style that PyYAML reads back
    unchanged.
    """

    def ignore_aliases(self, data: Any) -> bool:
        """Return True: equal values are written twice, since the loader refuses aliases."""
        return True

    def represent_text(self, text: str) -> yaml.Node:
        """Return a plain scalar, or a double-quoted one for text with control characters."""
        return self.represent_scalar(_TEXT, text, None if text.isprintable() else '"')

    def represent_time(self, at: datetime) -> yaml.Node:
        """Return a time in RFC 3339."""
        return self.represent_scalar("tag:yaml.org,2002:timestamp", format_time(at))


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_representer(datetime, _Dumper.represent_time)


class _Loader(yaml.SafeLoader):
    """A YAML reader of plain data that can be written again unchanged.

    It refuses aliases, with which a small file could expand without bound, duplicate keys, and integers longer than
    Python writes. It refuses pairs, which would come back as lists. It refuses sets, whose order differs in each
    process. A time that Python cannot represent (Go writes years 0 and above 9999) is read as text. A plain `=` and
    `<<`, which have a meaning only in old YAML, are read as text too.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node; raise if it is an alias."""
        if self.check_event(yaml.AliasEvent):
            raise ValueError("an alias")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a dictionary; raise if a key stands twice."""
        # PyYAML keeps the last of two equal keys without a word.
        mapping = super().construct_mapping(node, deep)
        if len(mapping) != len(node.value):
            raise ValueError("a field stands twice")
        return mapping

    def construct_number(self, node: yaml.ScalarNode) -> int:
        """Return an integer; raise if it is too long."""
        # Some notations take time that grows with the square of the length.
        if len(node.value) > MAX_INTEGER_CHARACTERS:
            raise ValueError(f"a number of {len(node.value)} characters")
        return int(super().construct_yaml_int(node))

    def construct_time(self, node: yaml.ScalarNode) -> date | str:
        """Return a time, in UTC, or a date; text if Python cannot represent it."""
        try:
            at: date = super().construct_yaml_timestamp(node)
            return _in_utc(at) if isinstance(at, datetime) else at
        except (ValueError, OverflowError):
            return str(node.value)

    def construct_mark(self, node: yaml.ScalarNode) -> str:
        """Return a plain `=` or `<<` as text."""
        return str(node.value)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Treat the keys `=` and `<<` as text.

        There is nothing to merge, because aliases are refused.
        """
        for key, _ in node.value:
            if key.tag in _MARKS:
                key.tag = _TEXT

    def refuse(self, node: yaml.Node) -> NoReturn:
        """Raise for a value that could not be written again unchanged."""
        raise ValueError(f"a value with the tag {node.tag}")


for _mark in _MARKS:
    _Loader.add_constructor(_mark, _Loader.construct_mark)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_number)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_time)
for _kind in ("omap", "pairs", "set"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.refuse)


def max_entry_bytes(state: EventLogState) -> int:
    """Return an upper bound of the bytes of a log's entry.

    It holds for all numbers that the entry may have, and counts no other fields.
    """
    # PyYAML escapes a character as at most ten, `\U` and eight digits, and one of printable ASCII as at most two. The
    # rest is the field names, the number and the time.
    return 200 + sum(2 if " " <= character <= "~" else 10 for character in state.name)


def encode(content: JournalContent, now: datetime, nonce: str) -> bytes:
    """Return the bytes of a file.

    A fresh `nonce` makes them different from every other version.
    """
    logs = [
        {"name": state.name, "record_number": state.record_number, "timestamp": state.timestamp, **state.other}
        for _, state in sorted(content.states.items())
    ]
    # An entry whose log was persisted since is replaced by the new state; the others are kept for a person to correct.
    logs += [dict(entry.fields) for entry in content.unreadable if entry.name not in content.states]
    document = {"update_time": now, "event_logs": logs, **content.other}
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=MAX_FILE_BYTES)
    # The nonce makes each version unique, so a swap cannot succeed on equal bytes that somebody else wrote.
    body = f"# write {nonce}\n{text}".encode()
    data = _SEAL % sha256(body).encode() + body
    if len(data) > MAX_FILE_BYTES:
        raise InvalidStateError(f"{len(data)} bytes of event logs: at most {MAX_FILE_BYTES} are written")
    return data


_BAD_YAML: tuple[type[Exception], ...] = (*BAD_INPUT, yaml.YAMLError)
"""Errors that PyYAML raises for bad bytes.

PyYAML lets errors of its constructors through.
"""


def decode(name: str, data: bytes) -> JournalContent:
    """Parse a file.

    If the file has a digest, it is checked against it. Winlogbeat's own files have none.

    An entry may have all fields, but a value that no state can have. It goes to `JournalContent.unreadable`, and the
    other entries are read. But the file is malformed if it may have been cut off at such an entry. It is whole if its
    digest matches, or if it ends with a newline.
    """
    # Checked before parsing: a torn file may still parse.
    if seal := _SEALED.match(data):
        check_digest(f"{name} below its first line", sha256(data[seal.end() :]), seal["digest"].decode())
    try:
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"{len(data)} bytes, at most {MAX_FILE_BYTES} are read")
        content = _parse(data)
        # A file that was cut off in its last entry would otherwise count as one with a bad entry, and lose those behind
        # it.
        if content.unreadable and not (seal or data.endswith(b"\n")):
            raise ValueError(content.unreadable[0].why)
        return content
    except _BAD_YAML as error:
        why = " ".join(str(error).split())
        raise MalformedError(f"{name}: expected YAML with update_time and event_logs, found {why:.300}") from None


def _parse(data: bytes) -> JournalContent:
    document = _load(data)
    if not isinstance(document, dict):
        raise ValueError("an empty file" if document is None else show(document))
    updated = document.pop("update_time", None)
    # A time that Python cannot represent was read as text, and is accepted here.
    if not isinstance(updated, str) or not _TIME.match(updated):
        _time(updated)
    logs = document.pop("event_logs", None)
    # A missing list is refused too: the file may have been cut off before it.
    if not isinstance(logs, list):
        raise ValueError(f"event_logs: {show(logs)}")
    entries = [_parse_entry(number, log) for number, log in enumerate(logs, 1)]
    names = [entry.name for entry in entries if entry.name]
    # Nothing tells which of the two is right, and taking the older one would process events again.
    if len(set(names)) != len(names):
        raise ValueError("an event log that stands twice")
    states = {entry.name: entry for entry in entries if isinstance(entry, EventLogState)}
    return JournalContent(states, document, tuple(entry for entry in entries if isinstance(entry, Unreadable)))


def _load(data: bytes) -> Any:
    """Return the document.

    Names of event logs are read as text, even one such as `yes`, as Go reads them.
    """
    loader = _Loader(data)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        for key, logs in root.value if isinstance(root, yaml.MappingNode) else ():
            if key.value == "event_logs" and isinstance(logs, yaml.SequenceNode):
                for log in logs.value:
                    _name_as_text(log)
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _name_as_text(log: yaml.Node) -> None:
    for key, value in log.value if isinstance(log, yaml.MappingNode) else ():
        # A null stays null: it is a name that is missing, and not the text "null".
        if key.value == "name" and isinstance(value, yaml.ScalarNode) and value.tag != "tag:yaml.org,2002:null":
            value.tag = _TEXT


def _parse_entry(number: int, log: Any) -> EventLogState | Unreadable:
    """Return an entry of `event_logs`.

    Raise if a field is missing, which may be a sign of a torn file.
    """
    if not isinstance(log, dict):
        raise ValueError(f"entry {number} of event_logs: {show(log)}")
    # A missing field fails the whole file, and a bad value only its entry: the first may be the place where the file
    # was torn.
    if missing := [key for key in _FIELDS if key not in log]:
        raise ValueError(f"entry {number} of event_logs without {missing[0]}")
    rest = {key: value for key, value in log.items() if key not in _FIELDS}
    try:
        return check_state(log["name"], log["record_number"], log["timestamp"], rest)
    except IllegalArgumentError as error:
        return Unreadable(log, f"event log {show(log['name'])}, entry {number} of event_logs: {error}")


def check_state(name: object, record_number: object, timestamp: object, other: Mapping[str, Any]) -> EventLogState:
    """Return the state with these fields.

    Raise `IllegalArgumentError`, naming the bad field, if no state can have them.
    """
    # Surrogates cannot be written as UTF-8, so one such name would make every later write of the file fail.
    if not isinstance(name, str) or not name or any("\ud800" <= character <= "\udfff" for character in name):
        raise IllegalArgumentError(f"name: expected text, found {show(name)}")
    if isinstance(record_number, bool) or not isinstance(record_number, int) or not 0 <= record_number < 2**64:
        raise IllegalArgumentError(f"record_number: expected an integer below 2**64, found {show(record_number)}")
    # Subclasses become plain values, since the safe dumper refuses them. By `str(name)` an enum would say another name.
    return EventLogState(str.__str__(name), int(record_number), _time(timestamp), other)


def _in_utc(at: datetime) -> datetime:
    """Return a time as it will be read again: in UTC, with microseconds.

    Raise `OverflowError` if UTC has no such time.
    """
    return datetime.fromisoformat(format_time(at))


def _time(value: object) -> datetime:
    """Return a time in UTC, to the microsecond.

    A time without a zone is taken to be in UTC.
    """
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return _in_utc(value)
    except (ValueError, OverflowError):
        pass
    raise IllegalArgumentError(f"timestamp: expected a time in years 1 to 9999, found {show(value)}")


__all__ = [
    "MAX_FILE_BYTES",
    "EventLogState",
    "JournalContent",
    "Unreadable",
    "check_state",
    "decode",
    "encode",
    "max_entry_bytes",
]
