"""Ask policies which checkpoints of a history they keep."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpointer import RetentionPolicy
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest

NOW = datetime(2026, 3, 4, 12, 30, tzinfo=UTC)  # a Wednesday
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def history(*ages: timedelta | None, epochs: int = 0) -> list[Manifest]:
    """Checkpoints of these ages, newest first as policies take them; epochs count down to `epochs`."""
    return [
        Manifest(
            CheckpointId(len(ages) - n, f"{n:08x}"),
            epoch=epochs + len(ages) - 1 - n,
            created=None if age is None else NOW - age,
        )
        for n, age in enumerate(ages)
    ]


def kept(policy: RetentionPolicy, checkpoints: list[Manifest]) -> list[int]:
    """Return which of the checkpoints stay, by position in the list."""
    found = policy.kept(checkpoints, NOW)
    return [n for n, manifest in enumerate(checkpoints) if manifest.id in found]


def test_without_rules_everything_stays() -> None:
    assert kept(RetentionPolicy(), history(HOUR, DAY, 400 * DAY)) == [0, 1, 2]
    assert RetentionPolicy().keeps_all
    assert not RetentionPolicy(every_epoch=2).keeps_all


def test_the_newest_so_many() -> None:
    assert kept(RetentionPolicy(keep_last=2), history(HOUR, 2 * HOUR, 3 * HOUR)) == [0, 1]


@pytest.mark.parametrize("rule", ["keep_younger", "hourly", "daily", "weekly"])
def test_a_time_in_the_future_keeps_nothing_for_longer(rule: str) -> None:
    """A clock was years ahead for a while. All checkpoints of that while are older than the ones after it."""
    ahead = -3650 * DAY
    checkpoints = history(HOUR, 20 * DAY, *(ahead - n * DAY for n in range(50)), 21 * DAY)
    assert kept(RetentionPolicy(**{rule: 8 * DAY}), checkpoints) == [0]


def test_a_time_in_the_future_is_at_most_now_where_nothing_newer_says_more() -> None:
    checkpoints = history(-HOUR, -2 * HOUR, None, -3 * HOUR, HOUR, -4 * HOUR)
    assert kept(RetentionPolicy(keep_younger=HOUR), checkpoints) == [0, 1, 2, 3]


def test_a_clock_that_was_behind_retires_nothing_else() -> None:
    """The time of a newer checkpoint counts for no other one whose own time may be right."""
    assert kept(RetentionPolicy(keep_younger=HOUR), history(timedelta(0), 9000 * DAY, timedelta(minutes=5))) == [0, 2]


def test_those_younger_than_a_duration() -> None:
    checkpoints = history(timedelta(0), HOUR - timedelta(seconds=1), HOUR, 2 * HOUR, None)
    assert kept(RetentionPolicy(keep_younger=HOUR), checkpoints) == [0, 1, 4]


def test_the_newest_of_each_hour_for_so_long() -> None:
    minutes = [timedelta(minutes=m) for m in (5, 29, 31, 89, 91, 200)]  # 12:25 12:01 | 11:59 11:01 | 10:59 | 09:10
    assert kept(RetentionPolicy(hourly=3 * HOUR), history(*minutes)) == [0, 2, 4]


def test_the_newest_of_each_day_and_of_each_week_for_so_long() -> None:
    days = [DAY * d for d in (0, 0.1, 1, 2, 3, 9, 10, 40)]  # Wed, Wed, Tue, Mon | Sun, Mon | Sun | January
    assert kept(RetentionPolicy(daily=5 * DAY), history(*days)) == [0, 2, 3, 4]
    assert kept(RetentionPolicy(weekly=21 * DAY), history(*days)) == [0, 4, 6]


def test_a_clock_in_another_zone_changes_nothing() -> None:
    from zoneinfo import ZoneInfo

    there = [
        Manifest(m.id, created=m.created.astimezone(ZoneInfo("Asia/Kathmandu")) if m.created else None)
        for m in history(*(timedelta(minutes=m) for m in (5, 29, 31, 89, 91, 200)))
    ]
    assert kept(RetentionPolicy(hourly=3 * HOUR), there) == [0, 2, 4]


def test_every_nth_epoch() -> None:
    checkpoints = [*history(*[HOUR] * 7), Manifest(CheckpointId(1, "f" * 8), epoch=None)]
    assert [checkpoints[n].epoch for n in kept(RetentionPolicy(every_epoch=3), checkpoints)] == [6, 3, 0]


def test_of_an_epoch_that_was_changed_by_hand_the_newest_stays() -> None:
    checkpoints = [
        replace(each, epoch=epoch) for each, epoch in zip(history(*[None] * 5), (4, 4, 3, 2, 2), strict=True)
    ]
    assert kept(RetentionPolicy(every_epoch=2), checkpoints) == [0, 3]


def test_what_a_function_keeps() -> None:
    marked = [Manifest(m.id, properties={"keep": m.id.sequence == 2}) for m in history(HOUR, HOUR, HOUR)]
    assert kept(RetentionPolicy(keep_if=lambda manifest: manifest.properties["keep"]), marked) == [1]


RULES = st.fixed_dictionaries(
    {},
    optional={
        "keep_last": st.integers(1, 8),
        "keep_younger": st.integers(1, 3000).map(lambda minutes: timedelta(minutes=minutes)),
        "hourly": st.integers(1, 50).map(lambda hours: timedelta(hours=hours)),
        "daily": st.integers(1, 30).map(lambda days: timedelta(days=days)),
        "weekly": st.integers(1, 60).map(lambda days: timedelta(days=days)),
        "every_epoch": st.integers(1, 9),
    },
)


@given(st.lists(st.integers(0, 60 * 24 * 60), min_size=1, max_size=40), RULES)
def test_rules_only_add_up(ages: list[int], rules: dict[str, Any]) -> None:
    checkpoints = history(*(timedelta(minutes=age) for age in sorted(ages)))
    together = set(kept(RetentionPolicy(**rules), checkpoints))
    alone = [set(kept(RetentionPolicy(**{name: value}), checkpoints)) for name, value in rules.items()]
    assert together == (set().union(*alone) if alone else set(range(len(checkpoints))))


@given(st.lists(st.integers(0, 60 * 24 * 60), min_size=1, max_size=40), RULES)
def test_what_was_retired_is_not_missed_later(ages: list[int], rules: dict[str, Any]) -> None:
    """Retiring in two steps keeps what retiring once keeps.

    The newest of a period is never retired in favour of an older one.
    """
    checkpoints = history(*(timedelta(minutes=age) for age in sorted(ages)))
    policy = RetentionPolicy(**rules)
    first = [checkpoints[n] for n in kept(policy, checkpoints)]
    assert kept(policy, first) == list(range(len(first)))


def test_every_reason_names_its_rule() -> None:
    checkpoints = history(timedelta(0), 3 * HOUR, epochs=4)
    rules = {"keep_last": 1, "every_epoch": 4}
    reasons = RetentionPolicy(**rules).kept(checkpoints, NOW)
    assert [*reasons.values()] == ["among the newest 1", "epoch 4 is a multiple of 4"]


@pytest.mark.parametrize(
    "rule",
    [
        {"keep_last": 0},
        {"keep_last": True},
        {"keep_last": 2.0},
        {"every_epoch": -1},
        {"hourly": 24},
        {"daily": timedelta(0)},
        {"keep_younger": timedelta(seconds=-1)},
        {"grace": timedelta(seconds=-1)},
        {"grace": None},
        {"keep_if": "newest"},
    ],
)
def test_a_rule_that_cannot_be_right_is_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(IllegalArgumentError, match=next(iter(rule))):
        RetentionPolicy(**rule)
