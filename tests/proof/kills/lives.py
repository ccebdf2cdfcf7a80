"""Processes with several lives: killed at a random moment, by their own id, and started again."""

import logging
import multiprocessing
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

from tests.proof.kills.ledger import Ledger, lines
from tests.proof.kills.writers import Place

PATIENCE = 240.0
"""Seconds without any word after which a process counts as stuck."""

Work = Callable[..., None]


class Slot:
    """A place for one process at a time. `work(place, name, seed, **options)` runs in it, life after life."""

    def __init__(self, place: Place, name: str, seed: int, work: Work, span: int = 12, **options: Any) -> None:
        self.name = name
        self.span = span
        """Lives are killed before they have said so many words."""
        self.kills = 0
        self.needed_a_hand = 0
        """Lives that ended by themselves."""
        self._place, self._seed, self._work, self._options = place, seed, work, options
        self._life = 0
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self._told = self.told
        arguments = (self._place, self.name, f"{self._seed}.{self.name}.{self._life}", self._work, self._options)
        self._process: BaseProcess = context.Process(target=_live, args=arguments, daemon=True)
        self._process.start()
        self._life += 1

    @property
    def told(self) -> int:
        return lines(self._place.ledger(self.name))

    def grant(self, numbers: random.Random) -> None:
        """How many words the life of now may say."""
        self._end = self._told + numbers.randrange(self.span)

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    @property
    def is_due(self) -> bool:
        return self.told >= self._end or not self.alive

    def kill(self) -> None:
        """SIGKILL, wherever it is, and another life."""
        if not self.alive:
            self.needed_a_hand += 1
        else:
            self._process.kill()
            self.kills += 1
        self._process.join()
        self._start()

    def pause(self, seconds: float) -> None:
        """Stop it, wherever it is, and let it go on later as if nothing had been: it does not know."""
        assert self._process.pid is not None
        if self.alive:
            os.kill(self._process.pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(self._process.pid, signal.SIGCONT)

    def finish(self) -> None:
        """Wait for its end, after all were told to stop."""
        self._process.join(PATIENCE)
        if self._process.exitcode != 0:
            self.needed_a_hand += 1
            self.end()

    def end(self) -> None:
        self._process.kill()
        self._process.join()


def _live(place: Place, name: str, seed: str, work: Work, options: dict[str, Any]) -> None:
    logging.getLogger("pyspark_checkpointer").setLevel(logging.ERROR)  # what did not succeed stands in the ledger
    try:
        work(place, name, seed, **options)
    except BaseException:
        Ledger(place.ledger(name)).tell("died", note=traceback.format_exc())
        raise


def until(done: Callable[[], bool], what: str, slots: Sequence[Slot] = ()) -> None:
    """Wait; much longer than anything takes, so that a proof that is stuck ends. No longer than all `slots` live."""
    end = time.monotonic() + PATIENCE
    while not done() and all(slot.alive for slot in slots):
        assert time.monotonic() < end, f"waited {PATIENCE:.0f} seconds for {what}"
        time.sleep(0.005)


def kill_at_random(slots: Sequence[Slot], kills: int, numbers: random.Random, pauses: bool = False) -> None:
    """Kill whichever has said as many words as its life was granted: few or none, so that a slow machine gets on too.

    After the last word it has a random while, so that nobody chooses the moment.
    """
    before = sum(slot.kills for slot in slots)
    for slot in slots:
        slot.grant(numbers)
    while sum(slot.kills for slot in slots) < before + kills:
        until(lambda: any(slot.is_due for slot in slots), "any process to say anything")
        victim = numbers.choice([slot for slot in slots if slot.is_due])
        time.sleep(numbers.uniform(0, 0.03))
        if pauses and numbers.random() < 0.3:
            victim.pause(numbers.uniform(0, 0.2))
        victim.kill()
        victim.grant(numbers)


def stop(place: Place, slots: Sequence[Slot]) -> None:
    """Let every process end by itself."""
    (place.ledgers / "stop").touch()
    for slot in slots:
        slot.finish()
