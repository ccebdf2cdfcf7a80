"""The page on encrypted roots does what it says, in the order of its text."""

import re
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.errors import InvalidStateError
from tests.damage import flip
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
    assert len(ran) == 11
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


@pytest.mark.parametrize("damage", ["lost", "damaged"])
def test_a_copy_of_the_keys_brings_a_root_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    reader = Reader.with_commands(tmp_path / "work", tmp_path / "commands")
    monkeypatch.chdir(reader.folder)
    Path("state.key").write_text(secrets.token_hex(32))
    client = Checkpointer("state/sealed", encryption="key-file:state.key")
    with client.begin() as cp:
        cp.save("totals", KeyedState({"alice": 41}))
    page = (DOCS / "encryption.md").read_text()
    section = page[page.index("### Keep a copy of `_keys` too") : page.index("## Key services")]
    copy, put_back = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    reader.run("sh", "-ec", copy)
    keys = Path("state/sealed/_keys")
    keys.unlink() if damage == "lost" else flip(keys)
    verb = [sys.executable, "-m", "pyspark_checkpointer", "list", "state/sealed", "--encryption", "key-file:state.key"]
    refused = subprocess.run(verb, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "_keys" in refused.stderr
    assert "copy" in refused.stderr
    reader.run("sh", "-ec", put_back)
    again = Checkpointer("state/sealed", encryption="key-file:state.key")
    assert again.restore().keyed("totals").to_dict() == {"alice": 41}  # type: ignore[union-attr]


def test_a_copy_from_before_a_rekey_opens_with_the_key_of_its_time(tmp_path: Path) -> None:
    old, new = (f"key-file:{tmp_path}/{name}.key" for name in ("old", "new"))
    for name in ("old", "new"):
        (tmp_path / f"{name}.key").write_text(secrets.token_hex(32))
    keys = tmp_path / "root" / "_keys"
    with Checkpointer(tmp_path / "root", encryption=old) as client:
        with client.begin() as cp:
            cp.save("totals", KeyedState({"x": 1}))
        copy = keys.read_bytes()
        client.rekey(new)
    keys.write_bytes(copy)
    with pytest.raises(InvalidStateError, match="give that one as encryption"):
        Checkpointer(tmp_path / "root", encryption=new).restore()
    with Checkpointer(tmp_path / "root", encryption=old) as client:
        client.rekey(new)
    assert Checkpointer(tmp_path / "root", encryption=new).restore().keyed("totals").to_dict() == {"x": 1}  # type: ignore[union-attr]
