"""Functions that users hand over may do anything; what they do must not end what they run in."""

import asyncio
import concurrent.futures
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer, RetentionPolicy
from pyspark_checkpointer.errors import IllegalArgumentError


@pytest.fixture
def root(tmp_path: Path) -> str:
    with Checkpointer(tmp_path).begin(7) as cp:
        cp.snapshot("model", 0, b"old")
        cp.snapshot("other", 0, b"1")
    return str(tmp_path)


def leave(*_: object) -> bytes:
    sys.exit("unknown version")


def interrupt(*_: object) -> bytes:
    raise KeyboardInterrupt


def give_up(*_: object) -> bytes:
    raise asyncio.CancelledError


def give_up_early(*_: object) -> bytes:
    raise concurrent.futures.CancelledError


def stop(*_: object) -> bytes:
    raise StopIteration


@pytest.mark.parametrize("function", [leave, interrupt, give_up, give_up_early, stop])
def test_one_that_ends_the_program_is_refused_and_all_goes_on(root: str, function: Callable[..., bytes]) -> None:
    client = Checkpointer(root)
    with pytest.raises(IllegalArgumentError, match="operator 'model', partition 0: its transform raised"):
        client.restore(transform={"model": function})
    with pytest.raises(IllegalArgumentError, match="a function of yours raised"):
        client.clean(RetentionPolicy(keep_if=function, grace=timedelta(0)))
    with client.begin(8) as cp:
        cp.snapshot("model", 0, b"new")
    assert client.restore().operator("model").read() == {0: [b"new"]}  # type: ignore[union-attr]


KEYS = """
import sys, tempfile
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.errors import CheckpointError
from pyspark_checkpointer.storage.signatures.signing_keys import Signing

member, error = sys.argv[1], getattr(__import__("builtins"), sys.argv[2])
private = Ed25519PrivateKey.generate()

class Key:
    provider = "mine"
    public_key = private.public_key().public_bytes_raw().hex()

    @property
    def key(self):
        return self.tell("key", "name")

    def wrap(self, data):
        return self.tell("wrap", data[::-1])

    def unwrap(self, wrapped):
        return self.tell("unwrap", wrapped[::-1])

    def sign(self, message):
        return self.tell("sign", private.sign(message))

    def tell(self, now, answer):
        if now == member and told:
            raise error("planted")
        return answer

told = False
options = {"encryption": Key()} if member != "sign" else {"signing": Signing((Key.public_key,), Key())}

def save(client, number):
    with client.begin(number) as cp:
        cp.snapshot("op", 0, b"1")

root = tempfile.mkdtemp()
if member in ("key", "unwrap"):
    save(Checkpointer(root, **options), 1)  # they open keys that are there
client = Checkpointer(root, **options)
told = True
try:
    save(client, 2)
except CheckpointError as refused:
    print(type(refused).__name__, refused)
told = False
save(Checkpointer(root, **options), 3)
print(Checkpointer(root, **options).restore().epoch)
"""


@pytest.mark.parametrize("error", ["SystemExit", "StopIteration", "KeyboardInterrupt"])
@pytest.mark.parametrize("member", ["key", "wrap", "unwrap", "sign"])
def test_a_key_that_ends_the_program_is_refused_and_all_goes_on(member: str, error: str) -> None:
    """In a process of its own, which would wait for ever."""
    command = [sys.executable, "-c", KEYS, member, error]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    refused, *rest = done.stdout.splitlines()
    assert refused.startswith(("IllegalArgumentError a function of yours raised", "SwapNotSentError nothing was")), done
    assert error in refused
    assert rest == ["3"]


HANDLER = """
import logging, pathlib, sys, tempfile
from pyspark_checkpointer import Checkpointer

class Exiting(logging.Handler):
    def emit(self, record):
        sys.exit(3)

logging.getLogger("pyspark_checkpointer").addHandler(Exiting())
root = tempfile.mkdtemp()
client = Checkpointer(root)
for number in range(2):
    with client.begin(number) as cp:
        cp.snapshot("op", 0, b"%d" % number)
for path in pathlib.Path(root, "artifacts").rglob("0000000002-*"):
    path.write_bytes(b"damaged")
print(Checkpointer(root).restore(on_corruption="previous").epoch)
with Checkpointer(tempfile.mkdtemp()).begin(7) as cp:
    cp.snapshot("op", 0, b"7")
print(cp.epoch)
"""


def test_a_handler_that_ends_the_program_ends_no_call() -> None:
    """In a process of its own, which would wait for ever."""
    done = subprocess.run([sys.executable, "-c", HANDLER], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["0", "7"], done


def test_a_restore_that_nobody_waits_for_changes_nothing_later(root: str) -> None:
    asked, answer = threading.Event(), threading.Event()

    def slow(*_: object) -> bytes:
        asked.set()
        assert answer.wait(60)
        return b"migrated"

    async def job() -> None:
        client = AsyncCheckpointer(root)
        waiting = asyncio.ensure_future(client.restore(rename={"other": "new"}, transform={"model": slow}))
        await asyncio.to_thread(asked.wait, 60)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        found = await client.restore()
        answer.set()
        for _ in range(100):  # it has time to go on
            await asyncio.sleep(0.001)
        assert found is not None
        async with client.begin(8) as cp:
            await cp.snapshot("third", 0, b"3")
        await client.close()

    asyncio.run(job())
    found = Checkpointer(root).restore()
    assert found is not None
    assert found.operators == ["model", "other", "third"]
    assert found.operator("model").read() == {0: [b"old"]}


@pytest.mark.parametrize("progress", [True, 5, "yes"])
def test_what_cannot_be_told_is_refused_before_anything_is_done(tmp_path: Path, progress: Any) -> None:
    client = Checkpointer(tmp_path / "root")
    for number in range(2):
        with client.begin(number) as cp:
            cp.snapshot("model", 0, b"%d" % number)
    for use in (
        lambda: client.clean(RetentionPolicy(keep_last=1, grace=timedelta(0)), progress=progress),
        lambda: client.export(None, tmp_path / "copy", progress=progress),
        lambda: client.verify(progress=progress),
    ):
        with pytest.raises(IllegalArgumentError, match="progress="):
            use()
    assert len(client.list_checkpoints()) == 2
    assert not (tmp_path / "copy").exists()


def test_functions_of_which_a_call_runs_nothing_are_refused(tmp_path: Path) -> None:
    async def later(*_: object) -> bool:
        return True

    for use in (
        lambda: RetentionPolicy(keep_if=later),  # type: ignore[arg-type]
        lambda: Checkpointer(tmp_path, metrics=later),  # type: ignore[arg-type]
        lambda: Checkpointer(tmp_path).verify(progress=later),  # type: ignore[arg-type]
    ):
        with pytest.raises(IllegalArgumentError):
            use()


@pytest.mark.parametrize(
    "call",
    [
        lambda ck: ck.repair("latest", accept_loss="false"),
        lambda ck: ck.repair("latest", accept_loss=True, older_partitions="no"),
        lambda ck: ck.rewind(to="latest", stopped="false"),
        lambda ck: ck.rewind(to="latest", dry_run=0),
        lambda ck: ck.undo_rewind(stopped="false"),
    ],
)
def test_a_flag_is_true_or_false(tmp_path: Path, call: Callable[[Checkpointer], object]) -> None:
    """The text "false" would count as True."""
    with pytest.raises(IllegalArgumentError, match="expected True or False"):
        call(Checkpointer(tmp_path))


@pytest.mark.parametrize("since", [pd.NaT, "2026-01-01", date(2026, 1, 1)])
def test_a_moment_that_is_none_is_refused(tmp_path: Path, since: Any) -> None:
    with pytest.raises(IllegalArgumentError, match="since="):
        Checkpointer(tmp_path).verify(since=since)
