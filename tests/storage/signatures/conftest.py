"""A signed root that tests attack."""

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.conftest import Place
from tests.storage.signatures.victim import Victim


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Victim:
    return Victim(Place("memory", f"memory://{secrets.token_hex(8)}", {}), tmp_path_factory.mktemp("original"))


@pytest.fixture
def victim(
    request: pytest.FixtureRequest,
    place_of: Callable[[str], Place],
    original: Victim,
    tmp_path: Path,
    forget: Callable[[], None],
) -> Victim:
    forget()  # each test has the same root, and this process saw what became of it in the last one
    return original.copied_to(place_of(request.param), tmp_path)


@pytest.fixture(params=["plain", "encrypted"])
def local_victim(request: pytest.FixtureRequest, place_of: Callable[[str], Place], tmp_path: Path) -> Victim:
    """A victim in a folder, for attacks that the kind of the store makes no difference to."""
    if request.param == "plain":
        return Victim(place_of("local"), tmp_path)
    (tmp_path / "state.key").write_text(secrets.token_hex(32))
    return Victim(place_of("local"), tmp_path, f"key-file:{tmp_path / 'state.key'}")
