"""The examples of manifests/ENCRYPTION.md are what the library writes and reads."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from pyspark_checkpointer.errors import CorruptionError, InvalidStateError
from pyspark_checkpointer.manifests.json_text import dump
from pyspark_checkpointer.manifests.keys_json import (
    MAX_KEYS,
    KeyGeneration,
    RootKeys,
    WrappedKey,
    decode_keys,
    encode_keys,
)
from pyspark_checkpointer.storage.encryption.data_keys import DataKeys
from pyspark_checkpointer.storage.encryption.key_providers import KeyFile

PAGE = (Path(__file__).parents[3] / "manifests" / "ENCRYPTION.md").read_text("utf-8")
EXAMPLES = dict(re.findall(r"^```(?:json|text) (.*)\n((?:.*\n)*?)```$", PAGE, re.M))
STORED = dump(json.loads(EXAMPLES["_keys"]))
KEYS = DataKeys("00112233445566778899aabbccddeeff", bytes(range(32)))


def test_every_example_is_tested() -> None:
    assert sorted(EXAMPLES) == ["_keys", "hidden paths", "stored artifact", "stored paths"]


def test_the_page_says_how_large_the_keys_may_be() -> None:
    assert f"only ever replaced by a swap. It has at most {MAX_KEYS >> 20} MiB." in PAGE


def test_the_keys_are_opened_as_the_page_says(tmp_path: Path) -> None:
    keys = decode_keys(STORED)
    assert encode_keys(keys) == STORED
    [generation] = keys.generations
    assert (generation.number, generation.hides_names, keys.deletes) == (1, False, False)
    assert keys.root_id == KEYS.root_id
    structure = HKDFExpand(SHA512(), 32, b"spark-state-checkpointer/encryption@1 structure").derive(KEYS.key)
    root = bytes.fromhex(KEYS.root_id)
    other = hashlib.sha256(b"spark-state-checkpointer/encryption@1 structure of " + root).digest()[:16]
    wrapped = {(32, "all"): root + KEYS.key, (64, "structure"): other + structure}
    for ((first, opens), content), wrapping in zip(wrapped.items(), generation.wrappings, strict=True):
        (tmp_path / "key").write_bytes(bytes(range(first, first + 32)))
        provider = KeyFile(str(tmp_path / "key"))
        assert (wrapping.provider, wrapping.key, wrapping.opens) == ("key-file", provider.key, opens)
        assert provider.unwrap(wrapping.wrapped) == content
    assert KEYS.structure() == DataKeys(KEYS.root_id, structure, opens="structure")


def test_objects_that_are_replaced_begin_as_the_page_says() -> None:
    assert KEYS.encrypt("_latest", b"{}").startswith(b"checkpointer-encrypted-1\n")
    assert f"the {len('checkpointer-encrypted-1')} bytes `checkpointer-encrypted-1`, a line\n  feed" in PAGE


def test_stored_paths() -> None:
    for line in EXAMPLES["stored paths"].splitlines():
        path, stored = line.split()
        assert KEYS.stored_path(path) == stored
        assert KEYS.logical_path(stored) == path


def test_hidden_paths() -> None:
    keys = replace(KEYS, generation=2, hides_names=True)
    for line in EXAMPLES["hidden paths"].splitlines():
        path, stored = line.split()
        assert keys.stored_path(path) == stored
        assert keys.logical_path(stored) == path


def test_the_first_bytes_tell_the_generation() -> None:
    for number, mark in ((1, b"checkpointer-encrypted-1\n"), (2, b"checkpointer-encrypted-1 2\n")):
        keys = replace(KEYS, generation=number)
        stored = keys.encrypt("_latest", b"{}")
        assert stored.startswith(mark)
        assert keys.decrypt("_latest", stored) == b"{}"
        assert keys.stored_path("manifests/0000000042-1a2b3c4d.json").endswith(
            ".json.enc" if number == 1 else ".json.enc2"
        )
        other = replace(KEYS, generation=3 - number)
        with pytest.raises(InvalidStateError, match="is encrypted with another data key than this client has"):
            other.decrypt("_latest", stored)
        assert other.logical_path(keys.stored_path("manifests/0000000042-1a2b3c4d.json")) is None


def test_what_is_older_than_the_keys_is_told_by_its_stored_path() -> None:
    names = replace(KEYS, generation=10).names
    plain = ("manifests/0000000042-1a2b3c4d.json", f"artifacts/x/0/0000000042-1a2b3c4d.delta.{'0' * 64}.raw")
    stored = (plain[0], plain[1].replace("0" * 64, "0" * 96))
    old = [*plain, *(f"{path}.enc{number}" for path in stored for number in ("", "2", "9"))]
    assert [path for path in old if not names.is_outdated(path)] == []
    other = [f"{path}.enc{number}" for path in stored for number in ("1", "02", "0", "10", "11", "100", "x")]
    other += [
        "_latest",
        "_keys",
        "somebody.enc",
        f"{plain[1]}.enc",
        f"{stored[1]}.enc.enc",
        "progress/followers.json",
        "x.json",
    ]
    assert [path for path in other if names.is_outdated(path)] == []


def test_a_stored_artifact() -> None:
    path = EXAMPLES["stored paths"].splitlines()[1].split()[0]
    stored = bytes.fromhex(EXAMPLES["stored artifact"])
    assert KEYS.encrypt(path, b"abc") == stored
    assert KEYS.decrypt(path, stored) == b"abc"
    assert stored[16:40].hex() in EXAMPLES["stored paths"].splitlines()[1].split()[1]  # its salt
    tags = HKDFExpand(SHA512(), 32, b"spark-state-checkpointer/encryption@1 tags").derive(KEYS.structure_key)
    key = HKDFExpand(SHA512(), 32, stored[16:40] + KEYS.root_id.encode() + b"\0" + path.encode()).derive(tags)
    assert AESGCM(key).encrypt(bytes(12), b"", stored[16:]) == stored[:16]


@pytest.mark.parametrize(
    "stored",
    [
        "manifests/0000000042-1a2b3c4d.json",
        "artifacts/totals/0/0000000042-1a2b3c4d.snapshot." + "0" * 64 + ".raw",
        "artifacts/totals/0/0000000042-1a2b3c4d.snapshot." + "0" * 64 + ".raw.enc",
        "artifacts/totals/0/0000000042-1a2b3c4d.snapshot." + "0" * 96 + ".raw.enc",
        "somebody.enc",
    ],
)
def test_other_stored_paths_are_no_part_of_the_root(stored: str) -> None:
    assert KEYS.logical_path(stored) is None


def test_an_operator_may_be_called_like_a_digest() -> None:
    for name in ("0" * 64, "a." + "0" * 64 + ".b", "a." + "0" * 96 + ".b", "x.enc"):
        path = f"artifacts/{name}/0/0000000042-1a2b3c4d.snapshot.{'1' * 64}.raw"
        assert KEYS.logical_path(KEYS.stored_path(path)) == path
        assert name in KEYS.stored_path(path)


SOUND = WrappedKey("key-file", "", b"x")


def keys_with(*generations: KeyGeneration, root_id: str = KEYS.root_id) -> RootKeys:
    return RootKeys(root_id, generations)


def generation(number: int, *wrappings: WrappedKey) -> KeyGeneration:
    return KeyGeneration(number, False, wrappings or (SOUND,))


@pytest.mark.parametrize(
    "changed",
    [
        keys_with(generation(1), root_id=""),
        keys_with(generation(1), root_id="0" * 31 + "A"),
        keys_with(generation(1, replace(SOUND, opens="structure"))),
        keys_with(generation(1, replace(SOUND, opens="nothing"))),  # type: ignore[arg-type]
        keys_with(generation(1, SOUND, replace(SOUND, opens="structure", wrapped=b"y"))),
        keys_with(KeyGeneration(1, False, ())),
        keys_with(generation(1, WrappedKey("", "", b"x"))),
        keys_with(generation(1, WrappedKey("key-file", "", b""))),
        keys_with(),
        keys_with(generation(0)),
        keys_with(generation(2), generation(2)),
        keys_with(generation(2), generation(1)),
        keys_with(generation(1), generation(2), generation(3)),
        keys_with(KeyGeneration(1, None, (SOUND,))),  # type: ignore[arg-type]
        RootKeys(KEYS.root_id, (generation(1),), 1),  # type: ignore[arg-type]
    ],
)
def test_keys_that_cannot_be_right_are_refused(changed: RootKeys) -> None:
    with pytest.raises(CorruptionError, match="_keys"):
        decode_keys(encode_keys(changed))


def test_a_text_that_is_no_base64_is_refused() -> None:
    body = STORED.replace(b'"wrapped":"', b'"wrapped":"!')
    from pyspark_checkpointer.manifests.digest import sha256

    head = body.rpartition(b',"digest":"')[0]
    with pytest.raises(CorruptionError, match="_keys: wrapping: wrapped: expected base64"):
        decode_keys(head + b',"digest":"' + sha256(head).encode() + b'"}')
