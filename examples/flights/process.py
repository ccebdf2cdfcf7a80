"""Run the job as a process that can be killed together with its JVM."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from examples.flights.events import Event, parse

REPOSITORY = Path(__file__).parents[2]

PATIENCE = 120
"""Seconds without any event after which the job counts as stuck."""


QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for a JVM that lives for seconds: less work for the compiler and for parallel garbage collection."""


class JobFailedError(Exception):
    """The job ended or stopped reporting, where it should not have."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The time that all runs of a job may take together."""

    seconds: float
    end: float
    """By the monotonic clock."""

    @classmethod
    def begin(cls, seconds: float) -> Self:
        return cls(seconds, time.monotonic() + seconds)

    @property
    def left(self) -> float:
        return self.end - time.monotonic()


class JobProcess:
    """A run of the job: a process group of its own, with Python and the JVM, and a pipe that both hold open."""

    def __init__(self, module: str, arguments: list[str], log: Path, limit: Limit) -> None:
        self._log = log
        self._limit = limit
        options = f"{QUICK_START} {os.environ.get('JDK_JAVA_OPTIONS', '')}"
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=REPOSITORY,
                env=os.environ | {"JDK_JAVA_OPTIONS": options.strip()},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def events(self) -> Iterator[Event]:
        """Yield what the job tells until it has ended by itself. Raises `JobFailedError` unless it ended well."""
        while (event := self._next()) is not None:
            yield event
        self._reader.join()
        if self._process.wait() != 0:
            raise self._failed(f"ended with status {self._process.returncode}")

    def kill(self) -> bool:
        """Send SIGKILL to Python and the JVM, and wait until both are gone. Return whether it came before the end."""
        if self._reader.is_alive() or self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(PATIENCE)  # the pipe ends with the last process that holds it
        if self._reader.is_alive():
            raise self._failed("left a process behind that SIGKILL did not end")
        return self._process.returncode == -signal.SIGKILL

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                event = parse(line)
                if event is not None:
                    self._events.put(event)
        self._events.put(None)

    def _next(self) -> Event | None:
        left = self._limit.left
        if left > 0:
            with suppress(queue.Empty):
                return self._events.get(timeout=min(PATIENCE, left))
        if left > PATIENCE:
            raise self._failed(f"has said nothing for {PATIENCE} seconds")
        raise self._failed(f"is not done after {self._limit.seconds:.0f} seconds, its limit")

    def _failed(self, how: str) -> JobFailedError:
        last = self._log.read_text(errors="replace").splitlines()[-40:]
        return JobFailedError("\n".join([f"The job {how}. The end of {self._log}:", *last]))
