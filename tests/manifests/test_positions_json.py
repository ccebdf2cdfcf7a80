"""Ownership and positions: what is written comes back, what is bad is named, and no name leads to another's path."""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import EllipsisType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.errors import (
    CorruptionError,
    DigestMismatchError,
    IllegalArgumentError,
    MalformedError,
    UnsupportedFormatError,
)
from pyspark_checkpointer.manifests.model import FORMAT_VERSION, Json
from pyspark_checkpointer.manifests.positions_json import (
    MAX_OWNERSHIP,
    MAX_POSITION,
    Ownership,
    Position,
    Row,
    decode_ownership,
    decode_position,
    encode_ownership,
    encode_position,
)
from tests.manifests.samples import AT, changed, extras, json_values, nonces, sealed, texts, times

NONCE = "f" * 32
OWNERSHIP = Ownership(
    {
        "0": Row("0", "me", 3, "e" * 32, AT, lease_ms=10_000, asked_by="you", extra={"x_row": [1]}),
        "ü/1": Row("ü/1", "", 0, "", AT, finished=True),
    },
    extra={"x_all": {"deep": None}},
)
POSITION = Position("ü/1", 3, {"sequence": "9" * 40, "state": {"a": [1, None]}}, AT, "e" * 32, extra={"x_one": "ü"})

OWNERSHIP_BYTES = encode_ownership(OWNERSHIP, NONCE)
POSITION_BYTES = encode_position(POSITION, NONCE)

Read = Callable[[bytes], Any]
FILES: dict[str, tuple[bytes, Read]] = {
    "ownership": (OWNERSHIP_BYTES, lambda data: decode_ownership("o.json", data)),
    "position": (POSITION_BYTES, lambda data: decode_position("p.json", data)),
}
both = pytest.mark.parametrize(("data", "read"), FILES.values(), ids=FILES)


# ---- round trips -----------------------------------------------------------------------------------------------------

numbers = st.integers(0, 2**63 - 1)
filled = st.text(min_size=1)
rows = st.builds(Row, filled, texts, numbers, texts, times, numbers, texts, st.booleans(), extras)
ownerships = st.builds(
    Ownership, st.lists(rows, max_size=4).map(lambda some: {row.partition: row for row in some}), extras
)
positions = st.builds(
    Position, filled, numbers, st.none() | st.dictionaries(texts, json_values, max_size=3), times, texts, extras
)


@given(ownerships, nonces)
def test_any_ownership_comes_back(ownership: Ownership, nonce: str) -> None:
    found = decode_ownership("o.json", encode_ownership(ownership, nonce))
    assert found == ownership
    assert list(found.rows) == list(ownership.rows)
    assert encode_ownership(found, nonce) == encode_ownership(ownership, nonce)


@given(positions, nonces)
def test_any_position_comes_back(position: Position, nonce: str) -> None:
    found = decode_position("p.json", encode_position(position, nonce))
    assert found == position
    assert encode_position(found, nonce) == encode_position(position, nonce)


def test_the_samples_come_back() -> None:
    assert decode_ownership("o.json", OWNERSHIP_BYTES) == OWNERSHIP
    assert decode_position("p.json", POSITION_BYTES) == POSITION
    assert decode_position("p.json", encode_position(replace(POSITION, value=None), NONCE)).value is None


def test_no_two_versions_are_equal() -> None:
    assert encode_ownership(OWNERSHIP, "0" * 32) != OWNERSHIP_BYTES
    assert encode_position(POSITION, "0" * 32) != POSITION_BYTES


def test_a_value_that_json_would_change_is_refused_by_name() -> None:
    for bad in ({"a": (1,)}, {1: "a"}, {"a": float("nan")}, {"a": b""}, {"a": "\ud800"}, {"a": {1}}, {"a": 10**309}):
        with pytest.raises(IllegalArgumentError, match="position of partition 'ü/1'"):
            encode_position(replace(POSITION, value=bad), NONCE)


@pytest.mark.parametrize("number", [-1, 2**63, 10**400])
def test_a_number_that_nobody_could_read_again_is_refused_by_name(number: int) -> None:
    """In one row it would keep every consumer of the group from reading who has what."""
    row = next(iter(OWNERSHIP.rows.values()))
    for bad in (replace(row, epoch=number), replace(row, lease_ms=number)):
        with pytest.raises(IllegalArgumentError, match=r"partition .*(epoch|lease_ms): expected an integer from 0 to"):
            encode_ownership(replace(OWNERSHIP, rows={row.partition: bad}), NONCE)
    with pytest.raises(IllegalArgumentError, match="position of partition 'ü/1': epoch"):
        encode_position(replace(POSITION, epoch=number), NONCE)


def test_what_is_kept_is_small() -> None:
    """Some 60,000 partitions fit into an ownership, and a position carries what an application keeps beside it."""
    row = Row("shardId-000000000000", "host.example.org:12345", 10**6, "e" * 32, AT)
    assert len(encode_ownership(Ownership({"p": row, "q": row}), NONCE)) < 700
    many = Ownership({str(number): replace(row, partition=f"{number:020d}") for number in range(60_000)})
    assert len(encode_ownership(many, NONCE)) < MAX_OWNERSHIP
    assert len(encode_position(POSITION, NONCE)) < 500
    assert MAX_POSITION >= 256 * 1024


# ---- bad bytes -------------------------------------------------------------------------------------------------------

WRONG_TEXTS: list[Json | EllipsisType] = [..., None, True, 1, [], {}]
WRONG_NUMBERS: list[Json | EllipsisType] = [..., None, True, 1.0, "1", [], {}, -1, 2**63]
WRONG_TIMES: list[Json | EllipsisType] = [*WRONG_TEXTS, "", "yesterday", "2024-01-02T03:04:05", "0001-01-01T00:00+23"]
ROW: Json = {
    "partition": "0",
    "owner": "",
    "epoch": 1,
    "etag": "",
    "modified": "2024-01-02T03:04:05Z",
    "lease_ms": 0,
    "asked_by": "",
    "finished": False,
}

BAD: dict[str, dict[str, list[Json | EllipsisType]]] = {
    "ownership": {
        "kind": [*WRONG_TEXTS, "", "position", "Ownership"],
        "rows": [..., None, {}, "a", 1, [None], [1], [[]], [{}], [ROW, ROW]],
        "nonce": [*WRONG_TEXTS, ""],
        "rows.0.partition": [*WRONG_TEXTS, "ü/1"],
        "rows.0.owner": WRONG_TEXTS,
        "rows.0.epoch": WRONG_NUMBERS,
        "rows.0.etag": WRONG_TEXTS,
        "rows.1.modified": WRONG_TIMES,
        "rows.0.lease_ms": WRONG_NUMBERS,
        "rows.1.asked_by": WRONG_TEXTS,
        "rows.1.finished": [..., None, 0, 1, "false", [], {}],
    },
    "position": {
        "kind": [*WRONG_TEXTS, "", "ownership"],
        "partition": WRONG_TEXTS,
        "epoch": WRONG_NUMBERS,
        "lease": WRONG_TEXTS,
        "value": [..., [], "a", 1, True],
        "modified": WRONG_TIMES,
        "nonce": [*WRONG_TEXTS, ""],
    },
}
CASES = [
    pytest.param(kind, field, value, id=f"{kind} {field}={'(absent)' if value is ... else ascii(value)[:30]}")
    for kind, fields in BAD.items()
    for field, values in fields.items()
    for value in values
]


@pytest.mark.parametrize(("kind", "field", "value"), CASES)
def test_every_wrong_field_is_malformed_and_named(kind: str, field: str, value: Json) -> None:
    data, read = FILES[kind]
    with pytest.raises(MalformedError, match=rf"^{kind[0]}\.json: "):
        read(sealed(changed(data, field, value)))


@both
def test_fields_of_a_newer_writer_survive(data: bytes, read: Read) -> None:
    value = read(sealed(changed(changed(changed(data, "digest", ...), "x_new", {"a": [1]}), "digest", "")))
    assert value.extra["x_new"] == {"a": [1]}
    write: Any = encode_ownership if isinstance(value, Ownership) else encode_position
    assert read(write(value, NONCE)) == value


@both
def test_a_newer_version_is_refused_by_name(data: bytes, read: Read) -> None:
    with pytest.raises(UnsupportedFormatError, match=rf"json: has format version {FORMAT_VERSION + 1}, .*: upgrade it"):
        read(changed(data, "format_version", FORMAT_VERSION + 1))


@both
def test_every_flipped_bit_is_found(data: bytes, read: Read) -> None:
    for at in range(8 * len(data)):
        bad = bytearray(data)
        bad[at // 8] ^= 1 << at % 8
        with pytest.raises(CorruptionError):
            read(bytes(bad))


@both
def test_every_cut_and_everything_behind_is_found(data: bytes, read: Read) -> None:
    for length in range(len(data)):
        with pytest.raises(MalformedError):
            read(data[:length])
    for behind in (b" ", b"\n", b"\0" * 100, data):
        with pytest.raises(MalformedError):
            read(data + behind)


@both
def test_another_digest_is_a_mismatch(data: bytes, read: Read) -> None:
    with pytest.raises(DigestMismatchError, match=r"expected SHA-256 0{64}"):
        read(data[:-66] + b"0" * 64 + b'"}')


@given(st.sampled_from(sorted(FILES)), st.dictionaries(texts, json_values, max_size=4), st.data())
def test_hostile_json_ends_in_the_tree(kind: str, fields: dict[str, Json], data: st.DataObject) -> None:
    """Any value in any field, sealed as it should be: it is read, or malformed, and nothing else."""
    good, read = FILES[kind]
    name = data.draw(st.sampled_from([key for key in BAD[kind] if "." not in key]))
    bad = changed(good, "digest", ...)
    for key, value in {**fields, name: data.draw(json_values)}.items():
        if "." not in key and not key.lstrip("-").isdigit() and key not in ("", "digest", "format_version"):
            bad = changed(bad, key, value)
    with suppress(CorruptionError):
        assert isinstance(read(sealed(changed(bad, "digest", ""))), Ownership | Position)


@given(st.binary(max_size=200))
def test_any_bytes_end_in_the_tree(data: bytes) -> None:
    for _, read in FILES.values():
        with pytest.raises(CorruptionError):
            read(data)


# ---- paths -----------------------------------------------------------------------------------------------------------

GOOD_PART = re.compile(r"[A-Za-z0-9_%~-][A-Za-z0-9_.%~-]*")
NAMES: dict[str, str] = {
    "0": "0",
    "shardId-000000000001": "shardId-000000000001",
    "Case": "Case",
    "case": "case",
    "a/b": "a%2Fb",
    "a\\b": "a%5Cb",
    "ü": "%C3%BC",
    "u\u0308": "u%CC%88",
    "%2F": "%252F",
    " ": "%20",
    "\0": "%00",
    "a.json": "a.json",
    ".": f"~{sha256(b'.')}",
    "..": f"~{sha256(b'..')}",
    "../x": f"%2Fx~{sha256(b'../x')}",
    ".hidden": f"hidden~{sha256(b'.hidden')}",
    "x" * 160: "x" * 160,
    "x" * 161: "x" * 80 + "~" + sha256(b"x" * 161),
    "ü" * 27: ("%C3%BC" * 14)[:80] + "~" + sha256(("ü" * 27).encode()),
}


@pytest.mark.parametrize(("name", "part"), NAMES.items(), ids=[ascii(name)[:20] for name in NAMES])
def test_a_part_of_a_path(name: str, part: str) -> None:
    assert object_paths.encode_part(name) == part
    assert object_paths.position("progress/x/", name) == f"progress/x/positions/{part}.json"


@pytest.mark.parametrize("name", ["", None, 1, b"a", "\ud800", "a\udfff"])
def test_a_name_that_nothing_can_be_called_is_refused(name: Any) -> None:
    with pytest.raises(IllegalArgumentError) as caught:
        object_paths.encode_part(name)
    assert len(str(caught.value)) < 200


def test_a_name_that_looks_cut_is_no_other_name() -> None:
    seen = ["x" * 500]
    for _ in range(3):
        seen.append(object_paths.encode_part(seen[-1]))
    assert len(set(seen)) == 4


names = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300),
    st.text("./~%aA\\", min_size=1, max_size=8),
    st.sampled_from(sorted(NAMES)),
    st.text("x.", min_size=150, max_size=200).map(object_paths.encode_part),
)


@given(names, names)
def test_two_names_never_have_one_path(one: str, two: str) -> None:
    assert (object_paths.encode_part(one) == object_paths.encode_part(two)) == (one == two)


@given(names, names, names)
def test_no_name_leaves_its_folder_or_meets_what_is_beside_it(interface: str, scope: str, partition: str) -> None:
    folder = object_paths.group_folder(interface, scope)
    for path, depth in ((object_paths.ownership(folder), 4), (object_paths.position(folder, partition), 5)):
        parts = path.split("/")
        assert parts[0] == "progress"
        assert len(parts) == depth
        assert all(GOOD_PART.fullmatch(part) and len(part) < 200 for part in parts)
        assert object_paths.owner(path) is None, "none of the checkpoints' own: no sweep takes it"
    assert object_paths.ownership(folder) != object_paths.position(folder, partition)


@given(st.lists(names, min_size=2, max_size=2), st.lists(names, min_size=2, max_size=2))
def test_what_names_another_group_has_another_folder(one: list[str], two: list[str]) -> None:
    assert (object_paths.group_folder("i", *one) == object_paths.group_folder("i", *two)) == (one == two)
    if one != two:
        assert not object_paths.group_folder("i", *one).startswith(object_paths.group_folder("i", *two))


# ---- what a path means -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "group", "kind"),
    [
        ("progress/kinesis/a/ownership.json", ("kinesis", "a"), "ownership"),
        ("progress/kinesis/a/positions/ownership.json", ("kinesis", "a"), "position"),  # a shard of that name
        (
            "progress/eventprocessorhost/h/positions/ownership.json",
            ("eventprocessorhost", "h", "positions"),
            "ownership",
        ),
        ("progress/eventprocessorhost/h/g/store.json", ("eventprocessorhost", "h", "g"), "store"),
        ("progress/eventhub/n/h/%24default/positions/0.json", ("eventhub", "n", "h", "$default"), "position"),
    ],
)
def test_a_path_has_one_meaning(path: str, group: tuple[str, ...], kind: Any) -> None:
    found = object_paths.parse_position_path(path)
    assert found == object_paths.PositionPath(path, group, kind)


@pytest.mark.parametrize(
    "path",
    [
        "progress/kinesis/a/b/ownership.json",
        "progress/kinesis/ownership.json",
        "progress/other/a/ownership.json",
        "progress/kinesis/a/positions/b/0.json",
        "progress/kinesis/a/positions/.0.json",
        "progress/kinesis/a/positions/%zz.json",
        "progress/kinesis/a/positions/%41.json",
        "progress/kinesis/a%2f/ownership.json",
        "elsewhere/kinesis/a/ownership.json",
    ],
)
def test_other_paths_have_none(path: str) -> None:
    assert object_paths.parse_position_path(path) is None


@pytest.mark.parametrize("name", ["", "p" * 16_385])
def test_a_partition_has_a_name_that_fits(name: str) -> None:
    row = Row(name, "", 0, "e", AT)
    with pytest.raises(MalformedError, match=r"partition: expected at (least one character|most 16384 characters)"):
        decode_ownership("o.json", encode_ownership(Ownership({name: row}), "n"))
    with pytest.raises(MalformedError, match=r"partition: expected at (least one character|most 16384 characters)"):
        decode_position("p.json", encode_position(Position(name, 0, None, AT), "n"))
    longest = name[1:] or "p"
    assert decode_position("p.json", encode_position(Position(longest, 0, None, AT), "n")).partition == longest
