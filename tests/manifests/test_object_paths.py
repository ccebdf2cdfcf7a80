"""Paths and names: no name can leave the root, and only the format's own paths are ever taken for such."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.digest import sha256, verify
from pyspark_checkpointer.manifests.errors import DigestMismatchError, IllegalArgumentError, MalformedError
from pyspark_checkpointer.manifests.model import CheckpointId
from tests.manifests.samples import ID, digest, names

D = digest("any")
OWN = f"artifacts/totals/7/{ID}.snapshot.{D}.raw"

GOOD_NAMES: dict[str, str] = {
    "totals": "totals",
    "a b": "a%20b",
    "A-Z_~.9": "A-Z_~.9",
    "naïve": "na%C3%AFve",
    "日本": "%E6%97%A5%E6%9C%AC",
    "100%": "100%25",
    "%2e%2e": "%252e%252e",
    "a:b*c?": "a%3Ab%2Ac%3F",
    "packs": "packs",
    "-": "-",
    "x" * 160: "x" * 160,
    "\U0001f600": "%F0%9F%98%80",
    "a..": "a..",
}
BAD_NAMES: dict[str, Any] = {
    "nothing": "",
    "the folder": ".",
    "the folder above": "..",
    "a way out": "../x",
    "a way out behind": "a/../../x",
    "hidden": ".hidden",
    "a slash": "a/b",
    "a root": "/",
    "a backslash": "a\\b",
    "a nul": "a\0b",
    "a line's end": "a\n",
    "a tabulator": "\ta",
    "delete": "a\x7f",
    "a control character of Latin-1": "a\x85",
    "a hard space": "a\xa0b",
    "a soft hyphen": "a\xadb",
    "a space of no width": "a\u200bb",
    "right to left": "a\u202eb",
    "a line separator": "a\u2028b",
    "a byte-order mark": "\ufeffa",
    "half a character": "a\ud800",
    "161 characters": "x" * 161,
    "10,000 characters": "x" * 10_000,
    "27 characters of six": "é" * 27,
    "bytes": b"a",
    "a number": 1,
    "nobody": None,
}


@pytest.mark.parametrize(("name", "encoded"), GOOD_NAMES.items())
def test_a_name_is_percent_encoded(name: str, encoded: str) -> None:
    assert object_paths.encode_name("operator", name) == encoded
    path = object_paths.artifact(name, 7, ID, "delta", D, "raw")
    assert path == f"artifacts/{encoded}/7/{ID}.delta.{D}.raw"
    assert object_paths.parse_artifact(path).operator == name
    assert object_paths.owner(path) == ID


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
def test_a_bad_name_is_refused_and_named(name: Any) -> None:
    with pytest.raises(IllegalArgumentError, match=r"^savepoint\b") as caught:
        object_paths.encode_name("savepoint", name)
    assert len(str(caught.value)) < 250
    with pytest.raises(IllegalArgumentError):
        object_paths.artifact(name, 0, ID, "delta", D, "raw")
    with pytest.raises(IllegalArgumentError):
        object_paths.pack(name, ID, D, "raw")


@given(st.text())
def test_no_name_leaves_its_place(name: str) -> None:
    try:
        encoded = object_paths.encode_name("operator", name)
    except IllegalArgumentError:
        return
    assert re.fullmatch(r"(?!\.)[A-Za-z0-9_.~%-]{1,160}", encoded)
    assert object_paths.parse_artifact(object_paths.pack(name, ID, D, "parquet")).operator == name


@pytest.mark.parametrize("partition", [-1, 2**31, 1.0, "0", None, True, "../x"])
def test_a_bad_partition_is_refused(partition: Any) -> None:
    with pytest.raises(IllegalArgumentError, match="partition"):
        object_paths.artifact("totals", partition, ID, "delta", D, "raw")


@given(names, st.integers(0, 2**31 - 1), st.sampled_from([*codecs.CODECS]), st.sampled_from(["snapshot", "delta"]))
def test_a_path_says_what_it_was_made_of(name: str, partition: int, codec: str, kind: Any) -> None:
    path = object_paths.artifact(name, partition, ID, kind, D, codec)
    assert object_paths.parse_artifact(path) == object_paths.ArtifactName(name, partition, ID, kind, D, codec)
    path = object_paths.pack(name, ID, D, codec)
    assert object_paths.parse_artifact(path) == object_paths.ArtifactName(name, None, ID, None, D, codec)


PATHS: dict[str, bool] = {
    object_paths.manifest(ID): False,
    object_paths.segment(ID, D): True,
    object_paths.catalog(ID, D): True,
    OWN: True,
    object_paths.pack("totals", ID, D, "msgpack+zstd"): True,
}


@pytest.mark.parametrize(("path", "has_digest"), PATHS.items())
def test_every_path_names_the_attempt_that_wrote_it(path: str, has_digest: bool) -> None:
    assert object_paths.owner(path) == ID
    if has_digest:
        assert object_paths.digest_of(path) == D
    else:
        with pytest.raises(MalformedError, match="digest"):
            object_paths.digest_of(path)


FOREIGN: dict[str, str] = {
    "nothing": "",
    "the pointer": "_latest",
    "a lock": "_lock",
    "progress": "progress/a/b",
    "a folder": "manifests/",
    "a README": "artifacts/README.md",
    "a way out": f"artifacts/../7/{ID}.snapshot.{D}.raw",
    "the folder itself": f"artifacts/./7/{ID}.snapshot.{D}.raw",
    "a hidden name": f"artifacts/.a/7/{ID}.snapshot.{D}.raw",
    "a dot, encoded": f"artifacts/%2E/7/{ID}.snapshot.{D}.raw",
    "a slash, encoded": f"artifacts/a%2Fb/7/{ID}.snapshot.{D}.raw",
    "small letters in an escape": f"artifacts/na%c3%afve/7/{ID}.snapshot.{D}.raw",
    "an escape too many": f"artifacts/%74otals/7/{ID}.snapshot.{D}.raw",
    "an escape of half a character": f"artifacts/%C3/7/{ID}.snapshot.{D}.raw",
    "a cut escape": f"artifacts/a%2/7/{ID}.snapshot.{D}.raw",
    "a name too long": f"artifacts/{'x' * 161}/7/{ID}.snapshot.{D}.raw",
    "an empty name": f"artifacts//7/{ID}.snapshot.{D}.raw",
    "a padded partition": OWN.replace("/7/", "/07/"),
    "a partition below zero": OWN.replace("/7/", "/-7/"),
    "a partition in other digits": OWN.replace("/7/", "/\u0667/"),
    "a sequence in other digits": OWN.replace("42-", "\u0664\u0662-"),
    "a short sequence": OWN.replace("0000000042", "42"),
    "a long sequence": OWN.replace("0000000042", "00000000042"),
    "capitals in the id": OWN.replace("1a2b", "1A2B"),
    "another kind": OWN.replace("snapshot", "full"),
    "another codec": OWN.replace(".raw", ".pickle"),
    "a short digest": OWN.replace(D, D[:-1]),
    "capitals in the digest": OWN.replace(D, D.upper()),
    "an end of line": OWN + "\n",
    "a temporary file": OWN + ".tmp",
    "a folder above": "x/" + OWN,
    "a root": "/" + OWN,
    "a manifest of no id": "manifests/latest.json",
    "a manifest's temporary file": object_paths.manifest(ID) + ".123.tmp",
    "a manifest in other digits": object_paths.manifest(ID).replace("42", "\u0664\u0662"),
    "an uncompressed segment": object_paths.segment(ID, D).removesuffix(".zst"),
    "a catalog without a digest": f"catalog/{ID}.json",
    "a compressed catalog": object_paths.catalog(ID, D) + ".zst",
}


@pytest.mark.parametrize("path", FOREIGN.values(), ids=FOREIGN)
def test_a_path_that_is_not_the_formats_own_belongs_to_nobody(path: str) -> None:
    assert object_paths.owner(path) is None
    with pytest.raises(MalformedError):
        object_paths.parse_artifact(path)


def test_a_path_is_never_too_long() -> None:
    longest = object_paths.artifact(
        "x" * 160, 2**31 - 1, CheckpointId(9_999_999_999, "f" * 8), "snapshot", D, "msgpack+zstd"
    )
    assert max(map(len, longest.split("/"))) <= 160


@pytest.mark.parametrize(
    "text", ["", "42", "0000000042-1A2B3C4D", "0000000042-1a2b3c4d ", "\u0660" * 10 + "-1a2b3c4d", None, 42]
)
def test_what_is_no_id_is_refused(text: Any) -> None:
    with pytest.raises(IllegalArgumentError, match="not a checkpoint id"):
        CheckpointId.parse(text)


@given(st.integers(0, 9_999_999_999), st.integers(0, 2**32 - 1))
def test_ids_sort_as_their_text_does(sequence: int, suffix: int) -> None:
    checkpoint = CheckpointId(sequence, f"{suffix:08x}")
    assert CheckpointId.parse(str(checkpoint)) == checkpoint
    assert (checkpoint < ID) == (str(checkpoint) < str(ID))


def test_size_is_checked_before_the_digest() -> None:
    verify("obj", b"abc", size=3, digest=sha256(b"abc"))
    verify("obj", memoryview(b"abc"), size=3, digest=sha256(b"abc"))
    with pytest.raises(DigestMismatchError, match=r"^obj: expected 4 bytes, found 3$"):
        verify("obj", b"abc", size=4, digest=sha256(b"abc"))
    with pytest.raises(DigestMismatchError, match=rf"^obj: expected SHA-256 {D}, found {sha256(b'abc')}$"):
        verify("obj", b"abc", size=3, digest=D)


@pytest.mark.parametrize("name", ["totals", "na\u00efve"])
def test_a_copy_differs_in_the_id_alone(name: str) -> None:
    old, new, digest = CheckpointId(3, "0123abcd"), CheckpointId(9, "89abcdef"), "0" * 64
    for path in (
        object_paths.artifact(name, 7, old, "delta", digest, "raw"),
        object_paths.pack(name, old, digest, "parquet"),
    ):
        assert object_paths.under(path, new) == path.replace(str(old), str(new))
        assert object_paths.owner(object_paths.under(path, new)) == new
    with pytest.raises(MalformedError):
        object_paths.under(object_paths.manifest(old), new)


@pytest.mark.parametrize(
    ("oldest", "newest", "prefix"),
    [
        (1, 1000, "manifests/000000"),
        (1200, 1299, "manifests/00000012"),
        (7, 7, "manifests/0000000007"),
        (1, 10**10 - 1, "manifests/"),
    ],
)
def test_manifests_are_listed_by_what_their_paths_have_in_common(oldest: int, newest: int, prefix: str) -> None:
    assert object_paths.manifests(oldest, newest) == prefix
    for sequence in (oldest, (oldest + newest) // 2, newest):
        assert object_paths.manifest(CheckpointId(sequence, "0123abcd")).startswith(prefix)
