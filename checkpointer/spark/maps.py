"""Refuse changes of a job's maps outside its batches; let entries expire.

No checkpoint would hold such changes. Only changes that are made through the map are refused. A list or dict that a
batch took out of the map is the user's own object, and nobody can refuse a change of it. A change that is made between
batches goes into the next checkpoint. A change that is made after the last batch goes into none.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.keyed.content import CHANGES
from pyspark_checkpointer.keyed.state import KeyedState
from pyspark_checkpointer.manifests.map_expiry import MAX_AFTER_US, micros
from pyspark_checkpointer.manifests.model import Manifest
from pyspark_checkpointer.spark.job_clock import JobClock

_MICROSECOND = timedelta(microseconds=1)


def allow_changes(keyed: KeyedState) -> None:
    """Let a batch change its map."""
    keyed.set_guard(None)


def refuse_changes(keyed: KeyedState, note: Callable[[InvalidStateError], None] = lambda error: None) -> None:
    """Refuse changes until the next batch, and note each refusal.

    The map can be read, and hands out copies of its values. `note` is called within the operation of the map, so it
    must not do more than keep the error.
    """

    def refuse(operation: Callable[..., Any]) -> None:
        try:
            _refuse_changes(operation)
        except InvalidStateError as error:
            note(error)
            raise

    keyed.set_guard(refuse)


def refuse_all(keyed: KeyedState) -> None:
    """Refuse every operation from now on.

    The map may hold what was never committed, and the next run has a map of its own.
    """
    keyed.set_guard(_refuse_all)


def _refuse_changes(operation: Callable[..., Any]) -> None:
    if operation in CHANGES:
        raise InvalidStateError(
            "this map was changed outside of a batch, where no checkpoint would hold the change: change it while the "
            "callback runs, with what state.map(name) returns there"
        )


def _refuse_all(operation: Callable[..., Any]) -> None:
    # A change gets the more exact error of the two.
    _refuse_changes(operation)
    raise InvalidStateError(
        "this map is of a run that has ended, or of a batch that failed: its changes may never have been committed; "
        "take state.map(name) in the callback, or Checkpointer(root).restore().keyed(name) elsewhere"
    )


def check_expire_after(name: str, given: object) -> int | None:
    """Return after how many microseconds entries expire; None where they do not."""
    if given is None:
        return None
    if isinstance(given, timedelta) and 0 < given // _MICROSECOND <= MAX_AFTER_US:
        return given // _MICROSECOND
    raise IllegalArgumentError(
        f"map {name!r}: expire_after={given!r:.80}: expected a timedelta above 0, of at most 100000000 days"
    )


def set_rule(name: str, keyed: KeyedState, after: int | None, clock: JobClock, parent: Manifest | None) -> None:
    """Let the entries of a map expire by the job's clock, or not at all.

    The rule holds from this batch on. A map that has entries takes its first rule only once the clock has a time. A job
    whose maps never expired needs no clock.
    """
    if keyed.expires and parent is not None and parent.clock is not None:
        # A map may be opened late in a run. What its old rule let expire until the last checkpoint must not come back
        # by the new rule.
        keyed.expire(micros(parent.clock.at))
    if after is not None and not keyed.expires and len(keyed):
        # They would all be expired once the clock has a time. Until then they stay, and the map takes the rule later.
        if clock.is_at_beginning:
            clock.hold(f"map {name!r}, which has entries, waits for a time to take expire_after")
            return
        # The entries that are there begin to expire with the time of now. A later time of this batch would take them.
        clock.hold(f"map {name!r}, which has entries, took expire_after")
    if after is not None or keyed.expires:
        keyed.set_rule(after, micros(clock.now()))
