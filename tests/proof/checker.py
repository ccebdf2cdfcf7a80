"""Builds and runs the linearizability checker: a small Go program around porcupine, a checker that others wrote.

`python -m tests.proof.checker` builds it into the cache of tests/servers.py, where Go is there to do it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.proof.histories import Operation
from tests.servers import Program, ServerUnavailableError, install

SOURCES = Path(__file__).parent / "linearizability"


def _version() -> str:
    """Return a digest of the sources, so that a change of the model is a program of its own."""
    return sha256(b"\0".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))).hexdigest()[:12]


CHECKER = Program(
    label="Linearizability checker",
    name="linearizability",
    version=_version(),
    installer="go",
    arguments=("install", "-C", str(SOURCES), "-buildvcs=false", "-mod=readonly", "."),
    executable="bin/linearizability",
)

TIMEOUT = 120
"""Seconds for one history."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checker says of a history. `open` counts its operations of unknown outcome."""

    verdict: str
    operations: int
    open: int
    seconds: float

    @property
    def is_linearizable(self) -> bool:
        return self.verdict == "linearizable"


class Checker:
    """The checker's program, as it was built."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def find(cls) -> "Checker | None":
        """Return the checker, or None where it was not built. Raises: ServerUnavailableError where it has to be."""
        try:
            return cls(CHECKER.find())
        except ServerUnavailableError:
            if os.environ.get("CHECKPOINTER_REQUIRE_SERVERS"):
                raise
            return None

    def check(self, histories: Iterable[Sequence[Operation]]) -> Iterator[Verdict]:
        """Judge each history, in turn."""
        lines = (line for history in histories for line in (*(one.line() for one in history), ""))
        done = subprocess.run(
            [str(self._path), "-timeout", f"{TIMEOUT}s"],
            input="\n".join((*lines, "")),
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise RuntimeError(f"the linearizability checker refuses its input: {done.stderr}")
        verdicts: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
        return (Verdict(**verdict) for verdict in verdicts)

    def judge(self, history: Sequence[Operation]) -> Verdict:
        """Judge one history."""
        (verdict,) = self.check([history])
        return verdict


if __name__ == "__main__":
    sys.exit(install(CHECKER))
