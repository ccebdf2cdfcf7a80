"""What the library makes on a disk, nobody but its owner can read, whatever the umask says."""

import os
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_checkpointer.errors import CheckpointError
from tests.proof.life import Life


@pytest.fixture(params=[0o000, 0o022], ids=["umask 000", "umask 022"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    previous = os.umask(request.param)
    yield
    os.umask(previous)


@pytest.mark.usefixtures("careless", "umask")
def test_everything_is_its_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: Counter[str]) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    modes: dict[Path, int] = {}
    unlink = os.unlink

    def note(path: str | Path, **options: int) -> None:
        """What goes again is seen too: temporary files, and what a plan was written to."""
        found = Path(path)
        if found.is_file() and tmp_path in found.parents:
            modes[found] = found.stat().st_mode
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", note)
    life = Life(str(tmp_path / "jobs" / "root"), None, tmp_path / "aside")
    made = life.live()
    said = life.type_it()
    assert [error for error in made if isinstance(error, CheckpointError)] == []
    assert [s for s in said if s.status == 2] == []
    modes |= {path: path.stat().st_mode for path in tmp_path.rglob("*")}

    names = {path.name for path in modes}
    assert {"_latest", ".lock", "journal.yml", "saved.plan", "report.html", "exported", "catalog", "progress"} <= names
    assert any(name.endswith(".tmp") for name in names)
    for path, mode in modes.items():
        assert stat.S_IMODE(mode) == (0o700 if stat.S_ISDIR(mode) else 0o600), path
    figures["files and folders looked at"] += len(modes)
