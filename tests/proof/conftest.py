"""What several proofs need."""

import os
from collections.abc import Callable
from functools import lru_cache

import pytest

from pyspark_checkpointer.checkpoint import latest
from pyspark_checkpointer.manifests import manifest_json
from tests.proof.checker import CHECKER, Checker
from tests.servers import Server, ServerUnavailableError


@pytest.fixture
def server_of(request: pytest.FixtureRequest) -> Callable[[str], Server | None]:
    """The server of a kind of store, which is started with the first use; None for a local folder."""
    return lambda kind: None if kind == "local" else request.getfixturevalue(f"{kind}_server")


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for a disk: some proofs are about what is touched, not about what survives."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding is a function of bytes, and takes half of the time: equal bytes are decoded once."""
    monkeypatch.setattr(manifest_json, "decode_manifest", lru_cache(4096)(manifest_json.decode_manifest))
    monkeypatch.setattr(latest, "decode_pointer", lru_cache(4096)(latest.decode_pointer))


@pytest.fixture(scope="session")
def checker() -> Checker:
    """The linearizability checker, which `make servers` builds."""
    try:
        return Checker(CHECKER.find())
    except ServerUnavailableError as unavailable:
        reason = str(unavailable)
    if os.environ.get("CHECKPOINTER_REQUIRE_SERVERS"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
