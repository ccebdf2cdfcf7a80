"""The functions of `cryptography` that encryption relies on pass Wycheproof's vectors, as it calls them."""

import json
import mmap
import struct
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV

from pyspark_checkpointer.storage.encryption.key_providers import KeyFile, PassphraseFile, UnwrapError
from pyspark_checkpointer.storage.encryption.outer_tags import KEY_BYTES, OuterTag

Case = dict[str, Any]


def cases(name: str) -> list[Any]:
    groups = json.loads((Path(__file__).parent / "vectors" / name).read_text())["testGroups"]
    found = [case for group in groups for case in group["tests"]]
    assert {case["result"] for case in found} == {"valid", "invalid"}
    return [pytest.param(case, id=str(case["tcId"])) for case in found]


def bytes_of(case: Case, *names: str) -> list[bytes]:
    return [bytes.fromhex(case[name]) for name in names]


def test_a_tag_of_more_bytes_than_a_signed_number_of_32_bits_counts() -> None:
    # Pages that nobody has written are one page of zeros, so that this takes no memory.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    message = memoryview(mmap.mmap(-1, 2**31 + 17, flags=flags, prot=mmap.PROT_READ))
    whole, pieces = (OuterTag(bytes(KEY_BYTES), b"salt", b"context") for _ in range(2))
    whole.update(message)
    for start in range(0, len(message), 1 << 26):
        pieces.update(message[start : start + (1 << 26)])
    assert whole.value() == pieces.value()


@pytest.mark.parametrize("case", cases("aes_gcm_256_96.json"))
def test_aes_gcm(case: Case) -> None:
    key, nonce, aad, message, stored, tag = bytes_of(case, "key", "iv", "aad", "msg", "ct", "tag")
    cipher, opened = AESGCM(key), bytearray(len(stored))
    if case["result"] == "valid":
        made = bytearray(len(message) + 16)
        cipher.encrypt_into(nonce, message, aad or None, made)
        assert made == stored + tag
        cipher.decrypt_into(nonce, stored + tag, aad or None, opened)
        assert opened == message
    else:
        with pytest.raises(InvalidTag):
            cipher.decrypt_into(nonce, stored + tag, aad or None, opened)


@pytest.mark.parametrize("case", cases("aes_kwp_256.json"))
def test_aes_key_wrap_with_padding(case: Case, tmp_path: Path) -> None:
    """By the provider whose key is a file: what is refused there is an `UnwrapError`, and never another key."""
    key, message, wrapped = bytes_of(case, "key", "msg", "ct")
    (tmp_path / "key").write_bytes(key)
    provider = KeyFile(str(tmp_path / "key"))
    if case["result"] == "valid":
        assert provider.wrap(message) == wrapped
        assert provider.unwrap(wrapped) == message
    else:
        with pytest.raises(UnwrapError):
            provider.unwrap(wrapped)


@pytest.mark.parametrize("case", cases("aes_siv_512_96.json"))
def test_aes_siv(case: Case) -> None:
    key, nonce, aad, message, stored, tag = bytes_of(case, "key", "iv", "aad", "msg", "ct", "tag")
    cipher, bound = AESSIV(key), [aad, nonce]
    if case["result"] == "valid":
        assert cipher.encrypt(message, bound) == tag + stored
        assert cipher.decrypt(tag + stored, bound) == message
    else:
        with pytest.raises(InvalidTag):
            cipher.decrypt(tag + stored, bound)


@pytest.mark.parametrize(
    ("cost", "block", "parallel"),
    [(2, 65_535, 65_535), (1 << 17, 1, 65_535), (1 << 17, 1, 1), (1 << 31, 8, 1), (3, 8, 1)],
)
def test_a_cost_that_no_writer_chose_opens_nothing(tmp_path: Path, cost: int, block: int, parallel: int) -> None:
    """Whoever writes `_keys` writes any numbers there. They cost no memory and no time, and raise nothing else."""
    (tmp_path / "words").write_text("four words of a passphrase")
    provider = PassphraseFile(str(tmp_path / "words"))
    wrapped = provider.wrap(bytes(48))
    assert provider.unwrap(wrapped) == bytes(48)
    with pytest.raises(UnwrapError):
        provider.unwrap(struct.pack(">IHH", cost, block, parallel) + wrapped[8:])
