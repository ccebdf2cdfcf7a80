"""Histories of tables on real Spark: `python -m tests.proof.table_job MASTER FOLDER ROOT FIRST COUNT`.

Prints what it counted as one line of JSON.

ROOT is absolute or relative. After the client of a relative one was made, the driver goes to another folder, as `%cd`
in a notebook does; executors of a cluster are elsewhere anyway.
"""

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_checkpointer import compaction
from tests.proof.table_history import History

BATCHES = 3


def main(master: str, folder: Path, root: str, first: int, count: int) -> None:
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "3",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    builder = SparkSession.builder.master(master).appName("tables")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    figures: Counter[str] = Counter()
    for seed in range(first, first + count):
        with pytest.MonkeyPatch.context() as patch:
            here, there = folder / str(seed), folder / f"{seed}-elsewhere"
            here.mkdir()
            there.mkdir()
            os.chdir(here)
            history = History(seed, figures, str(here / "state") if root == "absolute" else "state", 30_000, spark)
            os.chdir(there)
            # What tasks are told; their own limits are those of the library.
            patch.setattr(compaction, "DRIVER_BYTES", history.draw.choice([1, 100_000, 16 << 20]))
            patch.setattr(compaction, "COMPACT_BYTES", history.draw.choice([100_000, 64 << 20]))
            try:
                for number in range(BATCHES):
                    history.batch(number)
                    history.check()
            except BaseException as error:
                error.add_note(f"in the history of seed {seed}")
                raise
            assert list(there.iterdir()) == [], "the state stands where the root was when the client was made"
        figures["histories"] += 1
    spark.stop()
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
