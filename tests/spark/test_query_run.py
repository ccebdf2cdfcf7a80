"""A run of a query ends whatever its threads do."""

from typing import Any, cast

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.errors import CheckpointError
from pyspark_checkpointer.spark import maps, query_run
from pyspark_checkpointer.spark.query_run import QueryRun


def test_a_map_that_a_thread_opens_meanwhile_does_not_keep_the_run_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = QueryRun(Checkpointer("memory://run-ends"), None, cast(Any, None))
    run.maps = {name: KeyedState() for name in "ab"}
    refuse = maps.refuse_all

    def opened_meanwhile(keyed: KeyedState) -> None:
        run.maps.setdefault("late", KeyedState())
        refuse(keyed)

    monkeypatch.setattr(query_run.maps, "refuse_all", opened_meanwhile)
    run.end()
    for name in "ab":
        with pytest.raises(CheckpointError):
            run.maps[name]["x"] = 1
