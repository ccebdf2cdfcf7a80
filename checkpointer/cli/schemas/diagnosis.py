"""Define the JSON of an examination of the store that a root is on."""

from typing import Annotated, Literal, TypedDict


class Check(TypedDict):
    """One thing that was looked at."""

    name: str
    outcome: Annotated[
        Literal["good", "warning", "bad", "unknown"],
        "bad: a job must not rely on this store; unknown: the credentials may not ask",
    ]
    found: str
    advice: str | None


class Latency(TypedDict):
    """The time that requests of one kind took, one after the other."""

    verb: str
    requests: int
    median_seconds: float
    slowest_seconds: float


class Contest(TypedDict):
    """Rounds in which several writers swapped one object at the same time."""

    writers: int
    rounds: Annotated[int, "whose winner is known, or that show that the store is wrong"]
    won_twice: Annotated[int, "rounds that more than one writer won"]
    won_by_nobody: Annotated[int, "rounds in which every writer was refused"]
    late_reads: Annotated[int, "rounds after which a reader was given another object than the one last written"]
    undecided: Annotated[int, "rounds that do not count, because answers were lost"]


class Diagnosis(TypedDict):
    """The result of an examination."""

    root: str
    fenced_by: Annotated[str | None, "what excludes other writers; null without fencing"]
    checks: list[Check]
    latencies: list[Latency]
    contest: Annotated[Contest | None, "null without fencing, and where no writer may write"]
