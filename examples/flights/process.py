"""The job as a process that can be killed, its JVM with it."""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from examples.flights.events import Event, parse

REPOSITORY = Path(__file__).parents[2]

PATIENCE = 120
"""Seconds without any event after which the job counts as stuck."""


QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives for seconds: less work for compiling well and for collecting garbage in parallel."""


class JobFailedError(Exception):
    """The job ended, or went silent, where it should not have."""


class JobProcess:
    """A run of the job: a process group of its own, with Python and the JVM, and a pipe that both hold open."""

    def __init__(self, module: str, arguments: list[str], log: Path) -> None:
        self._log = log
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
        """What the job tells, until it has ended by itself. Raises `JobFailedError` unless it ended well."""
        while (event := self._next()) is not None:
            yield event
        self._reader.join()
        if self._process.wait() != 0:
            raise self._failed(f"ended with status {self._process.returncode}")

    def kill(self) -> None:
        """SIGKILL to Python and the JVM at once. Returns when neither is left."""
        if self._reader.is_alive() or self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(PATIENCE)  # the pipe ends with the last process that holds it
        if self._reader.is_alive():
            raise self._failed("left a process behind that SIGKILL did not end")

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
        try:
            return self._events.get(timeout=PATIENCE)
        except queue.Empty:
            raise self._failed(f"has said nothing for {PATIENCE} seconds") from None

    def _failed(self, how: str) -> JobFailedError:
        last = self._log.read_text(errors="replace").splitlines()[-40:]
        return JobFailedError("\n".join([f"The job {how}. The end of {self._log}:", *last]))
