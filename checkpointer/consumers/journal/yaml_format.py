"""The YAML of a journal: Winlogbeat's, under a comment with the digest of the rest, which other readers pass over.

A file with that digest is checked against it, so one that was torn and still parses is found. One without, as
Winlogbeat writes it, is only parsed. Fields that are not known are kept.
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
from pyspark_checkpointer.manifests.json_fields import format_time
from pyspark_checkpointer.manifests.shown import show

LIMIT = 1 << 20
"""Largest file, in bytes, that is read or written."""

MAX_INTEGER_CHARACTERS = 200
"""Characters of an integer, in any of the notations of YAML."""


@dataclass(frozen=True, slots=True)
class EventLogState:
    """The last event of a log that was dealt with. `timestamp` is in UTC, with microseconds."""

    name: str
    record_number: int
    timestamp: datetime
    other: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Fields of this event that another writer added, such as Winlogbeat's `bookmark`."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a file says: the states by name, what else another writer put at its top, and entries that say no state."""

    states: Mapping[str, EventLogState]
    other: Mapping[str, Any]
    unreadable: tuple["Unreadable", ...] = ()


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An entry of the file that says no state, and why. Its fields are written again as they were read."""

    fields: Mapping[str, Any]
    why: str = field(compare=False)
    """It names the place in the file, which is another once the file was written again."""

    @property
    def name(self) -> str:
        """The name of its event log; empty where that is what cannot be read."""
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
    """Times in RFC 3339; text with control characters in the one style that PyYAML reads back unchanged."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.Node:
        return self.represent_scalar(_TEXT, text, None if text.isprintable() else '"')

    def represent_time(self, at: datetime) -> yaml.Node:
        return self.represent_scalar("tag:yaml.org,2002:timestamp", format_time(at))


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_representer(datetime, _Dumper.represent_time)


class _Loader(yaml.SafeLoader):
    """Plain data without aliases, which could grow without bound, and without keys that stand twice.

    Nothing that could not be written again: no numbers longer than Python writes, no pairs, which come back as lists,
    and no sets, whose order is another in each process. A time that Python does not have (Go writes years 0 and above
    9999), and a plain `=` or `<<`, which mean something in old YAML only, are the text that stands there.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("an alias")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) != len(node.value):
            raise ValueError("a field stands twice")
        return mapping

    def construct_number(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > MAX_INTEGER_CHARACTERS:  # some notations take time that grows with its square
            raise ValueError(f"a number of {len(node.value)} characters")
        return int(super().construct_yaml_int(node))

    def construct_time(self, node: yaml.ScalarNode) -> date | str:
        try:
            at: date = super().construct_yaml_timestamp(node)
            return _in_utc(at) if isinstance(at, datetime) else at
        except (ValueError, OverflowError):
            return str(node.value)

    def construct_mark(self, node: yaml.ScalarNode) -> str:
        return str(node.value)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Leave the keys `=` and `<<` as text. There is nothing to merge: aliases are refused."""
        for key, _ in node.value:
            if key.tag in _MARKS:
                key.tag = _TEXT

    def refuse(self, node: yaml.Node) -> NoReturn:
        raise ValueError(f"a value with the tag {node.tag}")


for _mark in _MARKS:
    _Loader.add_constructor(_mark, _Loader.construct_mark)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_number)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_time)
for _kind in ("omap", "pairs", "set"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.refuse)


def largest(state: EventLogState) -> int:
    """More bytes than a state will ever take in a file, whatever its numbers, unless other fields are kept with it."""
    return 200 + 10 * len(state.name)


def encode(content: Content, now: datetime, nonce: str) -> bytes:
    """Return the file. `nonce` makes it unlike every other; it is never used twice."""
    logs = [
        {"name": state.name, "record_number": state.record_number, "timestamp": state.timestamp, **state.other}
        for _, state in sorted(content.states.items())
    ]
    logs += [dict(entry.fields) for entry in content.unreadable if entry.name not in content.states]
    document = {"update_time": now, "event_logs": logs, **content.other}
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=LIMIT)
    body = f"# write {nonce}\n{text}".encode()
    data = _SEAL % sha256(body).encode() + body
    if len(data) > LIMIT:
        raise InvalidStateError(f"{len(data)} bytes of event logs: at most {LIMIT} are written")
    return data


_BAD_YAML: tuple[type[Exception], ...] = (*BAD_INPUT, yaml.YAMLError)
"""What bad bytes make PyYAML raise: it lets errors of its constructors through."""


def decode(name: str, data: bytes) -> Content:
    """Parse a file. One with a digest is checked against it, others (Winlogbeat's own) are only parsed.

    An entry that has all fields, and a value that no state can have, costs no other entry: `Content.unreadable` has
    it, also where it is the only one. Where that may be a sign of a file that was cut off, the file is malformed: one
    is whole whose digest fits, or that ends with a newline.
    """
    if seal := _SEALED.match(data):
        check_digest(f"{name} below its first line", sha256(data[seal.end() :]), seal["digest"].decode())
    try:
        if len(data) > LIMIT:
            raise ValueError(f"{len(data)} bytes, at most {LIMIT} are read")
        content = _parse(data)
        if content.unreadable and not (seal or data.endswith(b"\n")):
            raise ValueError(content.unreadable[0].why)  # it may be the end that was cut off
        return content
    except _BAD_YAML as error:
        why = " ".join(str(error).split())
        raise MalformedError(f"{name}: expected YAML with update_time and event_logs, found {why:.300}") from None


def _parse(data: bytes) -> Content:
    document = _load(data)
    if not isinstance(document, dict):
        raise ValueError("an empty file" if document is None else show(document))
    updated = document.pop("update_time", None)
    if not isinstance(updated, str) or not _TIME.match(updated):  # a time that Python does not have is text
        _time(updated)
    logs = document.pop("event_logs", None)
    if not isinstance(logs, list):  # nothing at all would be a file cut off here
        raise ValueError(f"event_logs: {show(logs)}")
    entries = [_parse_entry(number, log) for number, log in enumerate(logs, 1)]
    names = [entry.name for entry in entries if entry.name]
    if len(set(names)) != len(names):
        raise ValueError("an event log that stands twice")
    states = {entry.name: entry for entry in entries if isinstance(entry, EventLogState)}
    return Content(states, document, tuple(entry for entry in entries if isinstance(entry, Unreadable)))


def _load(data: bytes) -> Any:
    """Construct the document. The name of an event log is the text that stands there, such as `yes`, as in Go."""
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
        if key.value == "name" and isinstance(value, yaml.ScalarNode) and value.tag != "tag:yaml.org,2002:null":
            value.tag = _TEXT


def _parse_entry(number: int, log: Any) -> EventLogState | Unreadable:
    if not isinstance(log, dict):
        raise ValueError(f"entry {number} of event_logs: {show(log)}")
    if missing := [key for key in _FIELDS if key not in log]:
        raise ValueError(f"entry {number} of event_logs without {missing[0]}")
    rest = {key: value for key, value in log.items() if key not in _FIELDS}
    try:
        return check_state(log["name"], log["record_number"], log["timestamp"], rest)
    except IllegalArgumentError as error:
        return Unreadable(log, f"event log {show(log['name'])}, entry {number} of event_logs: {error}")


def check_state(name: object, record_number: object, timestamp: object, other: Mapping[str, Any]) -> EventLogState:
    """Return the state with these fields, or `IllegalArgumentError` naming the one that is none."""
    if not isinstance(name, str) or not name or any("\ud800" <= character <= "\udfff" for character in name):
        raise IllegalArgumentError(f"name: expected text, found {show(name)}")
    if isinstance(record_number, bool) or not isinstance(record_number, int) or not 0 <= record_number < 2**64:
        raise IllegalArgumentError(f"record_number: expected an integer below 2**64, found {show(record_number)}")
    return EventLogState(str(name), int(record_number), _time(timestamp), other)


def _in_utc(at: datetime) -> datetime:
    """As it is written, and so read again. `OverflowError` where there is no such time in UTC."""
    return datetime.fromisoformat(format_time(at))


def _time(value: object) -> datetime:
    """Return a time in UTC, where one without a zone is taken to be. What is finer than microseconds is cut off."""
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return _in_utc(value)
    except (ValueError, OverflowError):
        pass
    raise IllegalArgumentError(f"timestamp: expected a time in years 1 to 9999, found {show(value)}")


__all__ = ["LIMIT", "Content", "EventLogState", "Unreadable", "check_state", "decode", "encode", "largest"]
