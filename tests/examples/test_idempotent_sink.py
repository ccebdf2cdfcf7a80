"""A batch that runs twice is written once."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.idempotent_sink import read_vouchers, take_back, write_once
from pyspark_checkpointer.spark import Token
from tests.docs.shared_spark import SharedSpark

REPOSITORY = Path(__file__).parents[2]
QUERY = "9f1c0b7e-52b1-4d7a-8f6f-0d4f6d1c2a11"


def test_a_batch_is_written_once(tmp_path: Path) -> None:
    database = tmp_path / "vouchers.db"
    assert write_once(database, Token(QUERY, 4), [("Ada", 120), ("Bob", 100)])
    assert not write_once(database, Token(QUERY, 4), [("Ada", 120), ("Bob", 100)])
    assert read_vouchers(database) == ["Ada", "Bob"]


def test_another_batch_and_another_query_are_written(tmp_path: Path) -> None:
    database = tmp_path / "vouchers.db"
    assert write_once(database, Token(QUERY, 4), [("Ada", 120)])
    assert write_once(database, Token(QUERY, 5), [("Bob", 100)])
    assert write_once(database, Token("another", 4), [("Cid", 101)])
    assert read_vouchers(database) == ["Ada", "Bob", "Cid"]


def test_a_batch_that_was_cut_off_is_written_in_full_the_next_time(tmp_path: Path) -> None:
    database = tmp_path / "vouchers.db"

    def broken() -> Iterator[tuple[str, int]]:
        yield "Ada", 120
        raise ConnectionError("cut off")

    with pytest.raises(ConnectionError):
        write_once(database, Token(QUERY, 4), broken())
    assert read_vouchers(database) == []
    assert write_once(database, Token(QUERY, 4), [("Ada", 120), ("Bob", 100)])
    assert read_vouchers(database) == ["Ada", "Bob"]


def test_the_token_says_that_a_batch_is_there_even_if_it_is_empty(tmp_path: Path) -> None:
    database = tmp_path / "vouchers.db"
    assert write_once(database, Token(QUERY, 0), [])
    assert not write_once(database, Token(QUERY, 0), [])
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT * FROM batches").fetchall() == [(QUERY, 0)]


def test_a_job_that_fails_between_the_sink_and_its_checkpoint_leaves_no_doubles(
    tmp_path: Path, one_spark: SharedSpark
) -> None:
    command = [sys.executable, "-m", "examples.idempotent_sink", "--folder", str(tmp_path)]
    environment = os.environ | one_spark.environment
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    written, again = [line for line in lines if line.startswith("batch 4: ")]
    assert written == "batch 4: 19 vouchers, written"
    assert again == "batch 4: 19 vouchers, had been written before"
    customers = read_vouchers(tmp_path / "vouchers.db")
    assert len(customers) == len(set(customers)) == 33


def test_after_a_rewind_the_corrected_batches_take_the_place_of_the_wrong_ones(tmp_path: Path) -> None:
    database = tmp_path / "vouchers.db"
    for batch, customer in ((4, "Ada"), (5, "Bob")):
        write_once(database, Token(QUERY, batch), [(customer, 100)])
    write_once(database, Token("another", 5), [("Cid", 101)])
    assert not write_once(database, Token(QUERY, 5), [("Eve", 100)])
    assert take_back(database, Token(QUERY, 4)) == 1
    assert write_once(database, Token(QUERY, 5), [("Eve", 100)])
    assert read_vouchers(database) == ["Ada", "Cid", "Eve"]
