"""Say which checkpoints to keep.

A policy is a value. The checkpoints that it keeps depend only on the history and the time.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest
from pyspark_checkpointer.runtime.user_functions import runs_nothing

DEFAULT_GRACE = timedelta(hours=1)

KeepIf = Callable[[Manifest], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """Rules that say which checkpoints to keep.

    A checkpoint is kept if any rule keeps it. Without rules, all are kept. The committed checkpoint, a prepared one and
    savepoints stay in any case. A checkpoint without a creation time counts as just made. One whose time is in the
    future counts as made when the next newer one was.

    Args:
        keep_last: Keep this many of the newest checkpoints, at least 1.
        keep_younger: Keep checkpoints that were made less than this ago.
        hourly: Keep the newest checkpoint of each hour (in UTC) that began less than this ago.
        daily: Keep the newest checkpoint of each day (in UTC) that began less than this ago.
        weekly: Keep the newest checkpoint of each week (in UTC, from Monday on) that began less than this ago.
        every_epoch: Keep the newest checkpoint of each epoch that is a multiple of this number, at least 1.
        keep_if: Keep checkpoints for whose manifest this function returns true. The chains of operators whose
            metadata is stored in segments are not loaded in this manifest.
        max_follower_lag: How many checkpoints a named follower of a table may be behind before its checkpoints are no
            longer kept for it, at least 0. By default they are kept until it has read them.
        grace: How long the objects of a checkpoint stay after it was retired, for readers that are using it. One hour
            by default. Zero is allowed.

    Raises:
        IllegalArgumentError: A number is below its least, or a time span is not a `timedelta` above zero.

    Examples:
        >>> from datetime import timedelta
        >>> policy = RetentionPolicy(keep_last=2)
        >>> checkpointer = Checkpointer("state/totals")
        >>> for epoch in range(5):
        ...     with checkpointer.begin(epoch=epoch) as checkpoint:
        ...         checkpoint.snapshot("totals", 0, b"%d" % epoch)
        >>> cleaned = checkpointer.clean(policy)
        >>> len(checkpointer.list_checkpoints())
        2
    """

    keep_last: int | None = None
    keep_younger: timedelta | None = None
    hourly: timedelta | None = None
    daily: timedelta | None = None
    weekly: timedelta | None = None
    every_epoch: int | None = None
    keep_if: KeepIf | None = None
    max_follower_lag: int | None = None
    grace: timedelta = DEFAULT_GRACE

    def __post_init__(self) -> None:
        for name, least in (("keep_last", 1), ("every_epoch", 1), ("max_follower_lag", 0)):
            number = getattr(self, name)
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < least):
                raise IllegalArgumentError(f"{name}={number!r:.40}: expected an integer of at least {least}")
        for name in ("keep_younger", "hourly", "daily", "weekly", "grace"):
            span = getattr(self, name)
            # A grace period of zero is allowed: it means that objects go at once. A rule that keeps nothing would be a
            # mistake.
            if span is None and name != "grace":
                continue
            if not isinstance(span, timedelta) or span < timedelta(0) or (not span and name != "grace"):
                raise IllegalArgumentError(f"{name}={span!r:.60}: expected a timedelta above zero")
        if self.keep_if is not None and (not callable(self.keep_if) or runs_nothing(self.keep_if)):
            raise IllegalArgumentError(f"keep_if={self.keep_if!r:.60}: expected a function of a manifest")

    @property
    def keeps_all(self) -> bool:
        """Return whether there is no rule, so that nothing is ever retired."""
        rules = (self.keep_last, self.keep_younger, self.every_epoch, self.keep_if, *self._periods().values())
        return all(rule is None for rule in rules)

    def _periods(self) -> Mapping[str, timedelta | None]:
        """Return the rules by period, by name."""
        return {"hourly": self.hourly, "daily": self.daily, "weekly": self.weekly}

    def kept(self, checkpoints: Iterable[Manifest], now: datetime) -> dict[CheckpointId, str]:
        """Return the checkpoints to keep, each with the rule that keeps it.

        Args:
            checkpoints: The manifests of the live checkpoints, newest first.
            now: The time to count from, in UTC.

        Examples:
            >>> from datetime import UTC, datetime
            >>> manifests = [checkpointer.load_manifest(id) for id in checkpointer.list_checkpoints()]
            >>> kept = RetentionPolicy(keep_last=1).kept(reversed(manifests), datetime.now(UTC))
            >>> list(kept.values())
            ['among the newest 1']
        """
        kept: dict[CheckpointId, str] = {}
        seen: set[tuple[str, datetime | int]] = set()
        made = now
        for index, manifest in enumerate(checkpoints):
            # Without a time it counts as new: a rule must not retire what it cannot judge. With one in the future, by a
            # clock that was ahead, it was made before the next newer one, or rules would keep it until then.
            created = manifest.created or now
            made = made if created > now else created
            rules = [rule for rule in self._rules(manifest, made, index, now, seen) if rule]
            if rules:
                kept[manifest.id] = rules[0]
        return kept

    def _rules(
        self, manifest: Manifest, made: datetime, index: int, now: datetime, seen: set[tuple[str, datetime | int]]
    ) -> list[str | None]:
        """Return the reasons of all rules that keep a checkpoint.

        Every rule is asked, even where one keeps it already: `seen` has to know the newest of each period.
        """
        found: list[str | None] = []
        if self.keeps_all:
            found.append("no rule retires anything")
        if self.keep_last is not None and index < self.keep_last:
            found.append(f"among the newest {self.keep_last}")
        if self.keep_younger is not None and now - made < self.keep_younger:
            found.append(f"younger than {self.keep_younger}")
        for name, span in self._periods().items():
            start = _start(name, made)
            # The newest come first, so the first of a period is the one to keep.
            if span is not None and now - start < span and (name, start) not in seen:
                seen.add((name, start))
                found.append(f"{name}: newest since {start:%Y-%m-%dT%H:%MZ}")
        epoch = manifest.epoch
        if self.every_epoch is not None and epoch is not None and epoch % self.every_epoch == 0:
            if ("epoch", epoch) not in seen:  # Older checkpoints of one epoch were followed by a change by hand.
                found.append(f"epoch {epoch} is a multiple of {self.every_epoch}")
            seen.add(("epoch", epoch))
        if self.keep_if is not None and self.keep_if(manifest):
            found.append("keep_if says so")
        return found


def _start(period: str, time: datetime) -> datetime:
    """Return when the hour, day or week began that a time lies in."""
    # In UTC, so that the same history is kept wherever a cleanup runs, and no day has 23 hours.
    hour = time.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    if period == "hourly":
        return hour
    day = hour.replace(hour=0)
    return day if period == "daily" else day - timedelta(days=day.weekday())
