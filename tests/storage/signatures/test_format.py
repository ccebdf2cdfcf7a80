"""The examples of manifests/SIGNATURES.md are what the library writes and reads."""

import re
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pyspark_checkpointer.errors import CorruptionError
from pyspark_checkpointer.manifests.signatures_json import (
    LINE_SIZE,
    MAX_SIGNERS,
    SIGNERS,
    Header,
    Signer,
    Signers,
    decode_signed,
    decode_signers,
    encode_header,
    encode_signed,
    encode_signers,
    logical_path,
    signed_message,
    stored_path,
)
from pyspark_checkpointer.storage.signatures.signing_keys import is_signed_by

PAGE = (Path(__file__).parents[3] / "manifests" / "SIGNATURES.md").read_text("utf-8")
EXAMPLES = dict(re.findall(r"^```text (.*)\n((?:.*\n)*?)```$", PAGE, re.M))
ROOT = "00112233445566778899aabbccddeeff"
OWNER, DRIVER = (Ed25519PrivateKey.from_private_bytes(bytes(range(first, first + 32))) for first in (0, 32))
MANIFEST = "manifests/0000000042-1a2b3c4d.json"


def public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


LIST = Signers(ROOT, 2, MappingProxyType({public(DRIVER): Signer("driver", public(DRIVER), ("commit",))}))


def sign(key: Ed25519PrivateKey, header: Header, path: str, content: bytes) -> bytes:
    line = encode_header(header)
    return encode_signed(line, key.sign(signed_message(ROOT, path, line, content)), content)


def test_every_example_is_tested() -> None:
    assert sorted(EXAMPLES) == ["_latest", SIGNERS, stored_path(MANIFEST)]


def test_the_page_says_how_large_the_list_may_be() -> None:
    assert f"only ever replaced by a swap. It has at most {MAX_SIGNERS >> 20} MiB." in PAGE


@pytest.mark.parametrize(
    ("path", "key", "header", "content"),
    [
        (MANIFEST, DRIVER, Header(public(DRIVER)), b"{}"),
        ("_latest", DRIVER, Header(public(DRIVER), datetime(2024, 1, 2, 3, 4, 5, 678, UTC), 2), b"{}"),
        (SIGNERS, OWNER, Header(public(OWNER)), encode_signers(LIST)),
    ],
)
def test_objects_are_signed_as_the_page_says(path: str, key: Ed25519PrivateKey, header: Header, content: bytes) -> None:
    stored = sign(key, header, path, content)
    assert stored + b"\n" == EXAMPLES[stored_path(path)].encode()
    signed = decode_signed(path, stored)
    assert (signed.header, signed.content) == (header, content)
    assert is_signed_by(header.key, signed.signature, signed.message(ROOT, path))
    for other in (("f" * 32, path), (ROOT, "_other")):
        assert not is_signed_by(header.key, signed.signature, signed.message(*other))


def test_the_list() -> None:
    content = EXAMPLES[SIGNERS].splitlines()[1].encode()
    assert decode_signers(content) == LIST
    assert encode_signers(LIST) == content


def test_a_signature_adds_what_a_listing_takes_away() -> None:
    assert len(sign(DRIVER, Header(public(DRIVER)), MANIFEST, b"")) == LINE_SIZE


def test_stored_paths() -> None:
    for path in ("_latest", "progress/kinesis/app/store.json", f"artifacts/a/0/{'0' * 9}1-00000000.x"):
        assert stored_path(path) == path
        assert logical_path(path) == path
    assert logical_path(stored_path(MANIFEST)) == MANIFEST
    assert logical_path(MANIFEST) is None
    assert logical_path(SIGNERS) is None


GOOD = sign(DRIVER, Header(public(DRIVER), datetime(2024, 1, 2, tzinfo=UTC), 2, "x"), "_latest", b"{}")


@pytest.mark.parametrize(
    "changed",
    [
        GOOD.replace(b"signed-1 ", b"signed-2 "),
        GOOD.replace(b"\n", b" "),
        GOOD.replace(b'"signers":2,', b""),
        GOOD.replace(b'"signers":2,', b'"signers":2,"more":1,'),
        GOOD.replace(b'"signers":2,', b'"signers": 2,'),
        GOOD.replace(b'"signers":2', b'"signers":0'),
        GOOD.replace(b'"commit":"x"', b'"commit":""'),
        GOOD.replace(b'"commit":"x"', b'"commit":null'),
        GOOD.replace(b',"signature":"', b',"signature":"0'),
        GOOD.replace(b',"signature"', b',"signature":"","signature"'),
        GOOD.replace(b'"key":"', b'"key":"A'),
        GOOD.replace(b"2024-01-02T00", b"2024-01-02T25"),
        b"",
        b"checkpointer-signed-1 \n",
    ],
)
def test_lines_that_cannot_be_right_are_refused(changed: bytes) -> None:
    assert decode_signed("_latest", GOOD).content == b"{}"
    with pytest.raises(CorruptionError, match="_latest"):
        decode_signed("_latest", changed)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"root":"00', '"root":"0'),
        ('"root":"00', '"root":"\\n0'),
        ('"version":2', '"version":0'),
        ('["commit"]', "[]"),
        ('["commit"]', '["consume","commit"]'),
        ('["commit"]', '["commit","read"]'),
        ('["commit"]', '"commit"'),
        ('"name":"driver"', '"name":""'),
        ('"signers":[', '"signers":[{"name":"x","key":"' + public(DRIVER) + '","roles":["clean"]},'),
        ('"version":2', '"version":2,"adopting":null'),
        ('"version":2', '"version":2,"adopting":1'),
        ('"roles"', '"through":-1,"roles"'),
    ],
)
def test_lists_that_cannot_be_right_are_refused(old: str, new: str) -> None:
    content = encode_signers(LIST).decode()
    assert old in content
    with pytest.raises(CorruptionError, match=SIGNERS):
        decode_signers(content.replace(old, new, 1).encode())
