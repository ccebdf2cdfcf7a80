"""The page on operations names every object that is replaced, for rules that refuse to replace objects."""

import re
from pathlib import Path

import pytest

from pyspark_checkpointer.storage.local.store import LocalStore
from tests.cli.conftest import Run
from tests.cli.every import calls

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def test_the_page_names_all_objects_that_are_replaced(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced: set[str] = set()
    swap = LocalStore.compare_and_swap

    async def recorded(store: LocalStore, path: str, data: bytes, expected: str | None) -> str:
        if expected is not None:
            replaced.add(re.sub(r"^(progress/|_probe-|_doctor-).*", r"\1", path))
        return await swap(store, path, data, expected)

    monkeypatch.setattr(LocalStore, "compare_and_swap", recorded)
    for call in calls(tmp_path):
        assert run(call.form.split()[0], *call.args, "--json").status == call.status, call
        if call.form == "signers --owner":  # a second change is the first one that replaces the list
            root, _, owner = call.args[:3]
            assert (
                run("signers", root, "--owner", owner, "--revoke", next(tmp_path.glob("driver-*.pub")).stem).status == 0
            )
    (said,) = re.findall(r"^\*\*What is replaced\*\*: (.*?)\n\n", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert {name.rstrip("…") for name in re.findall(r"`([^`]+)`", said)} == replaced
