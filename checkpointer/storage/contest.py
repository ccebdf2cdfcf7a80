"""Let several writers swap one object at the same time: exactly one may win.

Some servers keep conditions only as long as requests come one at a time. Some servers show a committed write late. A
check with one request after the other does not find such servers.
"""

import asyncio
import secrets
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark_checkpointer.errors import CheckpointError, RetryableError, ThrottlingError
from pyspark_checkpointer.storage.base import Blob, PreconditionFailedError, Store
from pyspark_checkpointer.storage.compare_and_swap import find_object, pause_before

T = TypeVar("T")

WRITERS = 8
"""Writers that swap at the same time."""

_KEYS_AT_ONCE = 2
"""Objects that are fought for at the same time.

A store that takes one write of an object in a second is then examined in half the time.
"""

_ROUNDS_OF_A_KEY = 10
"""Rounds that an object is swapped in, at most. In the first one the writers create it."""

_LIMIT = 1000
"""Bytes that a reader takes. The objects are smaller."""

_MAX_SENDS = 4
"""Attempts at a swap for which the store asks to wait."""

_MAX_UNDECIDED = 3
"""Undecided rounds, in addition to a tenth of all rounds, after which the contest is given up."""


_Answer = str | PreconditionFailedError | RetryableError
"""The version that a swap wrote, or the error of one that did not win, or that has no answer."""


@dataclass(slots=True, eq=False)
class Contest:
    """The outcome of rounds in which several writers swapped one object at once."""

    max_undecided: int
    """Rounds without a known winner after which the contest is given up."""
    rounds: int = 0
    """Rounds whose winner is known, or that show that the store is wrong."""
    won_twice: int = 0
    """Rounds that more than one writer won."""
    won_by_nobody: int = 0
    """Rounds in which the store refused every writer."""
    late: int = 0
    """Rounds after which a reader was given another object than the winner's."""
    undecided: int = 0
    """Rounds that do not count: no answer told of a winner, and some answers were lost."""

    @property
    def problem(self) -> str | None:
        """Return what the store does wrong; None if it does nothing wrong.

        It does nothing wrong if each round had one winner, and all readers saw the winner's object.
        """
        found = [
            f"{name} in {number} of {self.rounds} rounds"
            for name, number in (
                ("let several writers win", self.won_twice),
                ("refused all writers", self.won_by_nobody),
                ("gave a reader another object than the one last written", self.late),
            )
            if number
        ]
        return ", ".join(found) or None

    def judge(self, answers: Mapping[bytes, _Answer], seen: Sequence[Blob | None]) -> tuple[bool, str | None]:
        """Count a round, and return whether it is decided, and the version that won.

        The version is None unless exactly one writer won. `answers` has the answer to each writer by what it wrote, and
        `seen` what each read afterwards.
        """
        won = {data: answer for data, answer in answers.items() if isinstance(answer, str)}
        lost = {data: answer for data, answer in answers.items() if isinstance(answer, RetryableError)}
        if not won and lost:
            # The swap took effect although its answer was lost, if all readers saw what it wrote.
            won = {blob.data: blob.version for blob in seen if blob and blob.data in lost and set(seen) == {blob}}
            if not won:
                self.undecided += 1
                if self.undecided > self.max_undecided:
                    raise next(iter(lost.values()))
                return False, None
        self.rounds += 1
        self.won_twice += len(won) > 1
        self.won_by_nobody += not won
        if len(won) != 1:
            return True, None
        self.late += any(blob is None or blob.data not in won for blob in seen)
        return True, next(iter(won.values()))


async def hold_contest(stores: Sequence[Store], prefix: str, rounds: int) -> Contest:
    """Let one writer on each of `stores` swap the same objects, in several rounds.

    The objects have fresh names that begin with `prefix`, and are deleted at the end. All stores have the same root. A
    store may be in `stores` several times: its concurrent requests have their own connections.

    Raises:
        RetryableError: Too many answers were lost for a verdict.
    """
    contest = Contest(_MAX_UNDECIDED + rounds // 10)
    size = min(_ROUNDS_OF_A_KEY, rounds)
    shares = iter([size] * (rounds // size) + [rounds % size])

    async def work() -> None:
        for share in shares:
            # After a round without a known winner, a request of it may still land. A fresh object has none.
            while share:
                share -= await _fight(stores, prefix + secrets.token_hex(8), share, contest)

    await _all(work() for _ in range(_KEYS_AT_ONCE))
    return contest


async def _fight(stores: Sequence[Store], path: str, rounds: int, contest: Contest) -> int:
    """Hold rounds for one object, and return how many were decided."""
    expected: str | None = None
    try:
        for number in range(rounds):
            # No two bodies are equal: a version may be a hash of the content.
            bodies = [b"round %d, writer %d" % (number, writer) for writer in range(len(stores))]
            tried = zip(stores, bodies, strict=True)
            answers = await _all(_swap(store, path, body, expected) for store, body in tried)
            is_decided, version = contest.judge(
                dict(zip(bodies, answers, strict=True)),
                await _all(find_object(store, path, _LIMIT) for store in stores),
            )
            if not is_decided:
                return number
            # Without one winner, the next round swaps on whatever is there.
            expected = _version(await find_object(stores[0], path, _LIMIT)) if version is None else version
        return rounds
    finally:
        # An object that stays behind has a name that nobody else uses, and does no harm.
        with suppress(CheckpointError):
            await stores[0].delete([path])


async def swap_patiently(store: Store, path: str, data: bytes, expected: str | None, *, must_win: bool = True) -> str:
    """Swap, and swap again where the store asks for a lower rate.

    Some stores take one write of an object in a second. A store that does not say how long to wait is waited for as by
    a commit. Raises as `compare_and_swap` does. A throttled attempt may still have taken effect, so that the next
    attempt is refused. Where the swap must win, such a refusal proves nothing, and the `ThrottlingError` is raised.
    """
    throttled: ThrottlingError | None = None
    for sent in range(_MAX_SENDS):
        if throttled is not None:
            await asyncio.sleep(pause_before(sent) if throttled.pause is None else throttled.pause)
        try:
            return await store.compare_and_swap(path, data, expected)
        except ThrottlingError as error:
            throttled = error
        except PreconditionFailedError as error:
            raise (throttled if must_win and throttled else error) from None
    assert throttled is not None
    raise throttled


async def _swap(store: Store, path: str, data: bytes, expected: str | None) -> _Answer:
    try:
        return await swap_patiently(store, path, data, expected)
    except (PreconditionFailedError, RetryableError) as error:
        return error


def _version(blob: Blob | None) -> str | None:
    return None if blob is None else blob.version


async def _all(requests: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all answers.

    The first error is raised after no request is under way any more.
    """
    tasks = [asyncio.ensure_future(request) for request in requests]
    await asyncio.gather(*tasks, return_exceptions=True)
    # Not what `gather` returns: some of these requests return errors.
    return [task.result() for task in tasks]
