"""A stranger judges the histories: porcupine, a checker that others wrote, against a sequential model of a root.

What actors were told, with the times of it, can have happened in one order, in which each operation takes effect at
once. An operation whose outcome nobody knows may take effect at any later time, or never.
"""

import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest

from tests.proof import judge
from tests.proof.anomalies import ANOMALIES, Anomaly, history
from tests.proof.checker import CHECKER, Checker
from tests.proof.histories import History, Operation, gather
from tests.proof.kills.counting import acknowledged, new_place
from tests.proof.kills.lives import Slot, stop, until
from tests.proof.kills.writers import compete
from tests.proof.planted import PLANTED, Planted
from tests.proof.walks import Walk, walk
from tests.servers import ServerUnavailableError

BY_NAME = {bug.name: bug for bug in PLANTED}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of refusals are logged as they should be; nobody reads them here."""
    caplog.set_level("CRITICAL", logger="pyspark_checkpointer")


# ---- the wiring ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("anomaly", ANOMALIES, ids=lambda anomaly: anomaly.name)
def test_an_anomaly_is_refused_and_its_mended_twin_is_not(checker: Checker, anomaly: Anomaly) -> None:
    bad, good = checker.check([history(anomaly.bad), history(anomaly.good)])
    assert bad.verdict == "not linearizable"
    assert good.verdict == "linearizable"
    assert bad.operations == len(anomaly.bad)
    assert good.open == sum(row[2] is None for row in anomaly.good)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"process": 1, "call": 1, "return": 2, "op": {"kind": "guess"}, "result": {}}', "no kind of operation"),
        ('{"process": 1, "call": 1, "return": 2, "op": {"kind": "list"}, "result": null}', "a return without a result"),
        ('{"process": 1, "call": 3, "return": 2, "op": {"kind": "list"}, "result": {}}', "a return before its call"),
        ('{"process": 1, "call": 1, "return": 2, "op": {"kind": "list", "also": 1}, "result": {}}', "unknown field"),
        ("no JSON", "invalid character"),
    ],
)
def test_what_the_checker_does_not_understand_it_refuses(checker: Checker, line: str, why: str) -> None:
    done = subprocess.run([CHECKER.find()], input=line, capture_output=True, text=True)
    assert done.returncode == 2
    assert why in done.stderr
    assert done.stdout == ""


def test_where_the_checker_is_missing_nobody_judges_unless_it_has_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKPOINTER_CACHE", str(tmp_path))
    monkeypatch.delenv("CHECKPOINTER_REQUIRE_SERVERS", raising=False)
    assert Checker.find() is None
    monkeypatch.setenv("CHECKPOINTER_REQUIRE_SERVERS", "1")
    with pytest.raises(ServerUnavailableError, match="Linearizability checker: "):
        Checker.find()


def test_an_operation_that_never_returned_is_open_whatever_ended_it() -> None:
    kept, operations = History(), []
    for error in (KeyboardInterrupt, None):
        try:
            with kept.operation(1, "commit"):
                if error is not None:
                    raise error
        except KeyboardInterrupt:
            pass
        operations = kept.operations
    assert [(one.returned is None, one.result) for one in operations] == [(True, None), (False, {})]


# ---- what interleavings did ------------------------------------------------------------------------------------------


def play(seed: int) -> list[Operation]:
    return walk(seed, observant=True).history.operations


@pytest.mark.usefixtures("decoded_once")
def test_random_histories_are_linearizable(
    checker: Checker, effort: Callable[[int, int], int], figures: Counter[str]
) -> None:
    """Writers, a zombie, cleanups, retention, savepoints and readers; requests are lost, late, or half done."""
    first, count, each = 1_000_000, effort(100, 20_000), effort(100, 200)
    for start in range(first, first + count, each):
        seeds = range(start, start + each)
        for seed, verdict in zip(seeds, checker.check(map(play, seeds)), strict=True):
            assert verdict.is_linearizable, f"{verdict.verdict}: python -m tests.proof.walks {seed}"
            figures["random histories"] += 1
            figures["random histories: operations"] += verdict.operations
            figures["random histories: operations of unknown outcome"] += verdict.open


SEEN = (
    "unconditional swap",
    "takeover without checking what was restored",
    "savepoints are retired with the rest",
    "a savepoint that is acknowledged and not made",
    "a rollback to another checkpoint than was asked for",
)
"""Rules without which actors are told what cannot be: a stranger who never sees the store can notice."""


def unjudged(seed: int) -> list[Operation]:
    """Play a history that nobody but the stranger judges. What breaks on the way is part of it."""
    history = Walk(seed)
    history.observant = True
    with suppress(Exception):
        history.run()
    return history.history.operations


@pytest.fixture
def nobody_else_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    for rule in ("_must", "_compare", "restored"):
        monkeypatch.setattr(judge.GarbageClassifier, rule, mock.Mock(return_value=None))


@pytest.mark.usefixtures("decoded_once", "nobody_else_judges")
def test_without_another_judge_sound_histories_are_linearizable_still(checker: Checker) -> None:
    assert all(verdict.is_linearizable for verdict in checker.check(map(unjudged, range(60))))


@pytest.mark.parametrize("name", SEEN)
@pytest.mark.usefixtures("decoded_once", "nobody_else_judges")
def test_the_stranger_alone_notices_a_rule_taken_out(checker: Checker, name: str, figures: Counter[str]) -> None:
    bug: Planted = BY_NAME[name]
    with bug():
        found = (
            verdict
            for start in range(0, 2000, 20)
            for verdict in checker.check([unjudged(seed) for seed in range(start, start + 20)])
        )
        assert any(verdict.verdict == "not linearizable" for verdict in found)
    figures["rules taken out that the stranger noticed"] += 1


# ---- what real processes did -----------------------------------------------------------------------------------------


def test_the_stranger_notices_real_processes_that_lose_updates(
    checker: Checker, tmp_path: Path, figures: Counter[str]
) -> None:
    """Four writers without the rule that a commit stands on what was restored; what they promise is not looked at."""
    place = new_place(tmp_path, None)
    slots = [Slot(place, f"w{number}", 1, compete, careless=True) for number in range(4)]
    try:
        until(lambda: acknowledged(place) >= 40 or not any(slot.alive for slot in slots), "commits")
        stop(place, slots)
    finally:
        for slot in slots:
            slot.end()
    assert checker.judge(gather(place.ledgers.glob("*.history"))).verdict == "not linearizable"
    figures["rules taken out that the stranger noticed"] += 1
