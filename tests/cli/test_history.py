"""`checkpointer history`, and how a key is typed."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.cli.key_argument import KEY
from pyspark_checkpointer.cli.screen import to_text
from pyspark_checkpointer.manifests.tagged_json import to_json
from tests.cli.conftest import Run
from tests.cli.every import write

KEYS: tuple[Any, ...] = (
    *("ann", "", "7", 7, -7, 1.5, True, None, b"\x00\xff", Decimal("1.10"), date(2024, 2, 29), time(2, 30)),
    *(UUID(int=7), timedelta(days=-1, microseconds=3), ("a", 1, ("b",)), frozenset({1}), 1 << 3000),
    *(datetime(2024, 1, 2, tzinfo=UTC), datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))),
    float("inf"),
)


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_a_key_is_typed_as_it_is_printed(key: Any) -> None:
    found = KEY.convert(to_text(to_json(key)), None, None).key
    assert (type(found), to_json(found)) == (type(key), to_json(key))


def test_what_is_no_json_is_text() -> None:
    for text in ("ann", "a b", "{", "2024-01-01", "null.", "größe"):
        assert KEY.convert(text, None, None).key == text


def test_each_change_and_where_the_history_begins(tmp_path: Path, run: Run) -> None:
    root = tmp_path / "root"
    with Checkpointer(root) as ck:
        state = KeyedState({"ann": 1})
        for epoch in range(4):
            if epoch == 1:
                state["ann"] = (1, 2)
            elif epoch == 3:
                del state["ann"]
            with ck.begin(epoch=epoch) as cp:
                cp.save("seen", state)
        ids = list(map(str, ck.list_checkpoints()))
    found = run("history", root, "seen", "ann", "--json").json
    kinds = [(change["id"], change["epoch"], change["change"]) for change in found["changes"]]
    assert kinds == [(ids[0], 0, "insert"), (ids[1], 1, "update"), (ids[3], 3, "delete")]
    assert (found["since"], found["complete"], found["first"]) == (ids[0], True, None)
    assert found["changes"][1]["after"] == {"$tuple": [1, 2]}
    found = run("history", root, "seen", '"ann"', "--after", "epoch=0", "--to", "epoch=2", "--json").json
    assert [change["change"] for change in found["changes"]] == ["update"]
    assert (found["since"], found["complete"], found["first"]) == (ids[0], False, 1)
    said = run("history", root, "seen", "ann").out.splitlines()
    assert (len(said), said[0]) == (6, 'seen, "ann"')
    assert said[-1] == f"from {ids[0]} on, with which the history of the store begins"
    assert said[3].split()[-3:] == ['{"$tuple":', "[1,", "2]}"]
    said = run("history", root, "seen", "bob", "--after", "epoch=0").out.splitlines()
    assert said == ['seen, "bob"', "no checkpoint changed it", f"after {ids[0]}, which had no such key, or null"]


@pytest.mark.parametrize("text", ["1001", "true", "null", "1.0", "-5"])
def test_a_text_that_looks_like_another_value_is_found_without_quotes(tmp_path: Path, run: Run, text: str) -> None:
    """A shell takes the quotes away from a key that is pasted as `cat` prints it."""
    root = tmp_path / "root"
    with Checkpointer(root) as ck, ck.begin() as cp:
        cp.save("m", KeyedState({text: 1}, partitions=8))
    assert run("history", root, "m", text).out.splitlines()[0] == f'm, "{text}"'
    for typed in (text, f'"{text}"'):
        found = run("history", root, "m", typed, "--json").json
        assert (found["key"], [change["after"] for change in found["changes"]]) == (text, [1])
    assert run("history", root, "m", "1002", "--json").json["key"] == 1002


def test_a_number_that_a_map_has_is_not_taken_for_text(tmp_path: Path, run: Run) -> None:
    root = tmp_path / "root"
    with Checkpointer(root) as ck, ck.begin() as cp:
        cp.save("m", KeyedState({1001: "whole", "1001": "text"}))
    values = [run("history", root, "m", key, "--json").json["changes"][0]["after"] for key in ("1001", '"1001"')]
    assert values == ["whole", "text"]


def test_a_key_of_a_text_column_needs_no_quotes(tmp_path: Path, run: Run) -> None:
    write(tmp_path / "root")
    for typed in ("1001", "true", "-5", '"1001"'):
        found = run("history", tmp_path / "root", "table", typed, "--json").json
        assert found["key"] == {"user": typed.strip('"')}


def test_a_row_of_a_table(tmp_path: Path, run: Run) -> None:
    write(tmp_path / "root")
    key = f"{'u' * 80}-1"
    found = run("history", tmp_path / "root", "table", key, "--json").json
    assert found["key"] == {"user": key}
    assert [(c["change"], c["after"]["n"]) for c in found["changes"]] == [("insert", 1), ("update", 2), ("update", 3)]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ('{"$none": 1}', "is none of"),
        ('{"$date": "x"}', "expected a key"),
        ('{"$decimal": "1", "zone": "UTC"}', "expected a key"),
        ('{"$integer": "7", "fold": 0}', "expected a key"),
    ],
)
def test_a_key_that_cannot_be_one_is_a_mistake(tmp_path: Path, run: Run, key: str, message: str) -> None:
    write(tmp_path / "root")
    done = run("history", tmp_path / "root", "table", key)
    assert (done.status, message in done.err) == (2, True), done.err


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_what_python_alone_takes_for_json_is_text(text: str) -> None:
    assert KEY.convert(text, None, None).key == text


def test_a_negative_number_is_a_key_and_no_option(tmp_path: Path, run: Run) -> None:
    root = tmp_path / "root"
    with Checkpointer(root) as ck, ck.begin() as cp:
        cp.save("m", KeyedState({-5: "whole", -0.5: "half", "-5": "text", "-x": "option"}))

    def found(*words: str) -> Any:
        return run("history", "--json", root, *words).json["changes"][0]["after"]

    assert found("m", "-5") == found("--", "m", "-5") == found("m", "--to", "latest", "--", "-5") == "whole"
    assert [found("m", key, "--to", "latest") for key in ("-0.5", "-5e-1", '"-5"')] == ["half", "half", "text"]
    assert found("m", "--", "-x") == "option"
    for words, said in (
        (("m", "-5", "--jsn"), "No such option '--jsn'. Did you mean '--json'?"),
        (("m", "-x"), "No such option '-x'"),
        (("m", "-5", "-6"), "Got unexpected extra argument (-6)"),
    ):
        done = run("history", root, *words)
        assert (done.status, said in done.err) == (2, True), done.err
    done = run("history", root, "m", "-5", "--to", "-6")
    assert (done.status, "'-6' is no id and no savepoint" in done.err) == (1, True), done.err
