"""What the audit says of dependencies: known, accepted for a while, or that nobody answered."""

import json
import tomllib
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.programs import load_script

ROOT = Path(__file__).parents[1]
TODAY = datetime.now(UTC).date() + timedelta(days=1)  # of whichever of the two a run that goes past midnight asks
PACKAGES = {"one": "1.0", "other": "2.0"}
FINE = {"name": "other", "version": "2.0", "vulns": []}
FOUND = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["1.1"]}
BAD = {"name": "one", "version": "1.0", "vulns": [FOUND]}


script = load_script("audit")


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stand in for pip-audit: the first answer is that about the control."""

    def say(*told: object) -> None:
        texts = [text if isinstance(text, str) else json.dumps({"dependencies": text}) for text in told]
        folder = tmp_path / "pip_audit"
        folder.mkdir()
        (folder / "__main__.py").write_text(
            f"import pathlib, sys\n"
            f"turn = pathlib.Path({str(tmp_path / 'turn')!r})\n"
            f"number = len(turn.read_text()) if turn.exists() else 0\n"
            f"turn.write_text('x' * (number + 1))\n"
            f"text = {texts!r}[number]\n"
            f"print(text, file=sys.stdout if text.startswith('{{') else sys.stderr)\n"
        )
        (folder / "__init__.py").touch()
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return say


def entry(days: int, **changes: str) -> str:
    fields = {"package": "one", "id": "CVE-1", "reason": "not reached"} | changes
    told = "".join(f'{name} = "{value}"\n' for name, value in fields.items())
    return f"[[accepted]]\n{told}until = {TODAY + timedelta(days)}\n"


@pytest.mark.parametrize(
    ("told", "known", "status", "said"),
    [
        ([BAD | {"vulns": []}, FINE], "", 0, "2 packages audited, 0 vulnerabilities"),
        ([BAD, FINE], "", 1, "VULNERABLE: one 1.0: PYSEC-1, CVE-1: fixed in 1.1"),
        ([BAD, FINE], entry(0), 0, "accepted until"),
        ([BAD, FINE], entry(0, id="PYSEC-1"), 0, "not reached"),
        ([BAD, FINE], entry(-2), 1, "was accepted until"),
        ([BAD, FINE], entry(0, package="other"), 1, "VULNERABLE"),
        ([BAD, {"name": "other", "skip_reason": "not found"}], entry(0), 75, "NOT AUDITED: other"),
        ([BAD, {"name": "other", "skip_reason": "not found"}], "", 1, "NOT AUDITED: other"),
        ([FINE], "", 75, "NOT AUDITED: one"),
        ("ERROR: the network is down", "", 75, "NOT AUDITED: 2 packages: ERROR: the network is down"),
    ],
)
def test_what_is_said_of_what_was_told(
    answers: Any, capsys: pytest.CaptureFixture[str], told: object, known: str, status: int, said: str
) -> None:
    answers([BAD], told)
    assert script.audit(PACKAGES, script.accepted(known)) == status
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("told", [[FINE], [{"name": "urllib3", "skip_reason": "not found"}], "ERROR: no route", "{}"])
def test_who_does_not_know_the_control_knows_nothing(
    answers: Any, capsys: pytest.CaptureFixture[str], told: object
) -> None:
    answers(told)
    assert script.audit(PACKAGES, {}) == 75
    assert "NOT AUDITED: 2 packages" in capsys.readouterr().out


@pytest.mark.parametrize("text", [entry(0, reason=""), '[[accepted]]\nid = "x"\n', entry(0, extra="x"), "not toml"])
def test_an_entry_says_why_and_until_when(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|Expected"):
        script.accepted(text)


def test_the_file_of_this_repository_can_be_read() -> None:
    script.accepted(script.ACCEPTED.read_text(encoding="utf-8"))


def test_what_the_extras_bring_is_audited_and_what_tests_need_is_not() -> None:
    found = script.installed()
    assert {"msgpack", "pyyaml", "botocore", "azure-core", "pyspark", "aiohttp", "opentelemetry-api"} <= found.keys()
    assert not {"pytest", "mypy", "pip-audit", script.PACKAGE} & found.keys()


def test_every_extra_of_pyproject_is_audited() -> None:
    """An extra that the development group does not install would have no package to ask about."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    assert {canonicalize_name(Requirement(line).name) for line in lines} <= script.installed().keys()


def test_a_package_that_is_not_installed_is_no_pass(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = script.distribution

    def distribution(name: str) -> Any:
        if name == "s3fs":
            raise PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(script, "distribution", distribution)
    assert script.main() == 1
    assert capsys.readouterr().out == "NOT AUDITED: s3fs is needed and not installed; run: make setup\n"
