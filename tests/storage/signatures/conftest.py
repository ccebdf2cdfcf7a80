"""A signed root that tests attack, and a process that forgets what it saw."""

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_checkpointer.storage.signatures import signers as signers_module
from pyspark_checkpointer.storage.signatures import versions
from pyspark_checkpointer.storage.signatures.freshness import Newest
from tests.storage.conftest import Place
from tests.storage.signatures.victim import Victim


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function after which this process is one that has seen nothing."""

    def run() -> None:
        monkeypatch.setattr(versions, "TIMES", Newest())
        monkeypatch.setattr(signers_module, "LISTS", Newest())

    return run


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Victim:
    return Victim(Place("memory", f"memory://{secrets.token_hex(8)}", {}), tmp_path_factory.mktemp("original"))


@pytest.fixture
def victim(
    request: pytest.FixtureRequest, place_of: Callable[[str], Place], original: Victim, tmp_path: Path
) -> Victim:
    return original.copied_to(place_of(request.param), tmp_path)


@pytest.fixture(params=["plain", "encrypted"])
def local_victim(request: pytest.FixtureRequest, place_of: Callable[[str], Place], tmp_path: Path) -> Victim:
    """A victim in a folder, for attacks that the kind of the store makes no difference to."""
    if request.param == "plain":
        return Victim(place_of("local"), tmp_path)
    (tmp_path / "state.key").write_text(secrets.token_hex(32))
    hides = "hide-names:" if request.param == "hidden" else ""
    return Victim(place_of("local"), tmp_path, f"{hides}key-file:{tmp_path / 'state.key'}")
