"""What processes that may die at any moment said of their commits, and whether the state bears it out.

A line is written after what it tells of was done, so an acknowledgement that is there was given. What the system has
taken from a process survives its SIGKILL, so nothing is synced.
"""

import json
import os
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TRIED, ADDED, REFUSED, UNKNOWN = "tried", "added", "refused", "unknown"
"""What is told of a token: begun; acknowledged; certainly not there; undecided for who tried."""

ANEW = "anew"
"""What is told where something went wrong, and the process restores."""


@dataclass(frozen=True, slots=True)
class Told:
    kind: str
    token: str
    note: str


class Ledger:
    """The lines of one process, and of those that take its place after it was killed."""

    def __init__(self, path: Path) -> None:
        self._name = path.stem
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(self._file, b"\n")  # the life before may have died in the middle of a line
        self._next = sum(told.kind == TRIED for told in read(path))

    def tell(self, kind: str, token: str = "", note: object = "") -> None:
        os.write(self._file, json.dumps([kind, token, str(note)]).encode() + b"\n")

    def new_token(self) -> str:
        """Begin a token: the name of the process, and how many it began before."""
        token = f"{self._name}-{self._next}"
        self._next += 1
        self.tell(TRIED, token)
        return token


def lines(path: Path) -> int:
    """How much was told, at a glance."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def read(path: Path) -> list[Told]:
    told = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(ValueError):  # cut off
            told.append(Told(*json.loads(line)))
    return told


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was promised, and the promises that were broken."""

    acknowledged: int
    refused: int
    lost: list[str]
    doubled: list[str]
    there_though_refused: list[str]
    out_of_order: list[str]

    @property
    def broken(self) -> list[str]:
        return self.lost + self.doubled + self.there_though_refused + self.out_of_order


def compare(told: list[Told], found: list[str]) -> Verdict:
    """Compare what was told with the tokens of the state, in the order in which the state has them."""
    counts = Counter(found)
    by_kind = {kind: {line.token for line in told if line.kind == kind} for kind in (ADDED, REFUSED)}
    return Verdict(
        acknowledged=len(by_kind[ADDED]),
        refused=len(by_kind[REFUSED]),
        lost=sorted(by_kind[ADDED] - counts.keys()),
        doubled=sorted(token for token, count in counts.items() if count > 1),
        there_though_refused=sorted(by_kind[REFUSED] & counts.keys()),
        out_of_order=_out_of_order(found),
    )


def _out_of_order(found: list[str]) -> list[str]:
    """Tokens that stand before an older one of the same process."""
    newest: dict[str, int] = {}
    wrong = []
    for token in found:
        parts = re.fullmatch(r"(.+)-(\d+)", token)
        assert parts is not None
        if int(parts[2]) < newest.get(parts[1], -1):
            wrong.append(token)
        newest[parts[1]] = int(parts[2])
    return wrong
