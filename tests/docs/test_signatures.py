"""The page on signed roots does what it says, in the order of its text."""

import re
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pyspark_checkpointer import Checkpointer, KeyedState
from tests.docs.pages import DOCS, Reader, blocks
from tests.signing_keys import make_keys


class KeyService:
    """Stands for a service that signs and never gives its key away."""

    def __init__(self) -> None:
        self._key = Ed25519PrivateKey.generate()

    def public_key(self) -> str:
        return self._key.public_key().public_bytes_raw().hex()

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)


def test_the_page_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader.with_commands(tmp_path / "work", tmp_path / "commands")
    monkeypatch.chdir(reader.folder)
    names: dict[str, Any] = {"KeyService": KeyService}
    ran = []
    for block in blocks(DOCS / "signatures.md"):
        if block.language == "python":
            exec(block.text, names)
        lines = block.text.splitlines() if block.language == "sh" else []
        for line in lines:
            if found := re.fullmatch(r"openssl genpkey -algorithm ed25519 -out (\w+\.pem)", line):
                make_keys(Path(found[1]))  # and the public key, as the next line does; there may be no openssl
        if commands := [line for line in lines if not line.startswith(("pip ", "openssl "))]:
            ran.append(reader.run("sh", "-ec", "\n".join(commands)))
    assert names["found"].keyed("totals").to_dict() == {"alice": 41}
    assert len(ran) == 5
    assert "revoked after 1" in ran[-3]
    assert Checkpointer("state/plain").restore().keyed("totals").to_dict() == {"alice": 41}  # type: ignore[union-attr]
    with names["served"].begin() as cp:
        cp.save("totals", KeyedState({"x": 1}))
    assert names["served"].copy().restore().keyed("totals").to_dict() == {"x": 1}
