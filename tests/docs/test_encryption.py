"""The page on encrypted roots does what it says, in the order of its text."""

import re
import secrets
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.errors import InvalidStateError
from tests.docs.pages import DOCS, Reader, blocks


class KeyService:
    """Stands for a service that keeps keys; it refuses what it did not encrypt."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}

    def encrypt(self, data: bytes) -> bytes:
        name = secrets.token_bytes(16)
        self.kept[name] = data
        return name

    def decrypt(self, wrapped: bytes) -> bytes:
        if wrapped not in self.kept:
            raise PermissionError
        return self.kept[wrapped]


def test_the_page_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader.with_commands(tmp_path / "work", tmp_path / "commands")
    monkeypatch.chdir(reader.folder)
    Path("state.key").write_text(secrets.token_hex(32))
    with Checkpointer("state/orders").begin() as cp:
        cp.save("totals", KeyedState({"bob": 7}))
    names: dict[str, Any] = {"KeyService": KeyService}
    ran = []
    for block in blocks(DOCS / "encryption.md"):
        if block.section == "From a root that is not encrypted, and back" and not Path("state.key").exists():
            Path("state.key").write_text(secrets.token_hex(32))  # the page removed it before
        for line in block.text.splitlines() if block.language == "sh" else ():
            if (found := re.fullmatch(r"openssl rand -hex 32 > (\S+) && chmod 600 \S+", line)) is not None:
                Path(found[1]).write_text(secrets.token_hex(32))
        if block.language == "python":
            exec(block.text, names)
        for line in block.text.splitlines() if block.language == "sh" else ():
            if line.startswith("checkpointer "):
                ran.append(reader.run("sh", "-ec", line))
    assert len(ran) == 10
    assert Checkpointer("state/sealed", encryption="key-file:newer.key").restore().keyed("totals").to_dict() == {  # type: ignore[union-attr]
        "alice": 41
    }
    audit = Checkpointer("state/audit", encryption="key-file:audit.key")
    assert audit.restore().keyed("totals").to_dict() == {"alice": 41}  # type: ignore[union-attr]
    assert Checkpointer("state/sealed", encryption="key-file:newer.key").savepoints() == []
    assert Checkpointer("state/plain").restore().keyed("totals").to_dict() == {"bob": 7}  # type: ignore[union-attr]
    with names["root"].begin() as cp:
        cp.save("totals", KeyedState({"x": 1}))
    assert names["root"].copy().restore().keyed("totals").to_dict() == {"x": 1}
    with pytest.raises(InvalidStateError, match="does not open the keys of this root"):
        Checkpointer("state/serviced", encryption=names["ServiceKey"](KeyService())).restore()


def test_a_root_whose_keys_are_gone_is_gone(tmp_path: Path) -> None:
    (tmp_path / "state.key").write_text(secrets.token_hex(32))
    client = Checkpointer(tmp_path / "root", encryption=f"key-file:{tmp_path}/state.key")
    with client.begin() as cp:
        cp.save("totals", KeyedState({"x": 1}))
    (tmp_path / "root" / "_keys").unlink()
    with pytest.raises(InvalidStateError, match="has lost its _keys"):
        Checkpointer(tmp_path / "root", encryption=f"key-file:{tmp_path}/state.key").restore()
