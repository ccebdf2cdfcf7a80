"""Histories that cannot have happened, each with a twin that can: they prove that the checker is wired to the model.

A history is written in rows: process, call, return (None where nobody knows), what was asked, what was told.
"""

from dataclasses import dataclass
from typing import Any

from tests.proof.histories import Operation

Row = tuple[int, int, int | None, dict[str, Any], dict[str, Any] | None]
OK: dict[str, Any] = {}
FENCED = {"refused": "fenced"}
CONFLICT = {"refused": "ConflictError"}


@dataclass(frozen=True, slots=True)
class Anomaly:
    """What must be refused; and the same, mended, which must be accepted."""

    name: str
    bad: tuple[Row, ...]
    good: tuple[Row, ...]


def history(rows: tuple[Row, ...]) -> list[Operation]:
    """Return the rows as a history."""
    return [Operation(process, call, op, returned, result) for process, call, returned, op, result in rows]


def restore(session: str, **more: Any) -> dict[str, Any]:
    return {"kind": "restore", "session": session, **more}


def commit(session: str, parent: str, made: str, kind: str = "commit") -> dict[str, Any]:
    return {"kind": kind, "session": session, "parent": parent, "id": made, "content": f"content of {made}"}


def act(kind: str, session: str = "", **more: Any) -> dict[str, Any]:
    return {"kind": kind, "session": session, **more}


def got(made: str, prepared: str = "") -> dict[str, Any]:
    return {"id": made, "content": f"content of {made}" if made else None, "prepared": prepared}


ONE, TWO, THREE = "0000000001-a", "0000000002-b", "0000000002-c"
FOUR = "0000000003-d"

BEGUN: tuple[Row, ...] = ((1, 1, 2, restore("s1"), got("")), (1, 3, 4, commit("s1", "", ONE), OK))
"""One writer and a first checkpoint."""

BOTH: tuple[Row, ...] = (*BEGUN, (2, 5, 6, restore("s2"), got(ONE)))
"""A second writer has restored it."""

ANOMALIES = (
    Anomaly(
        "a lost update",
        bad=(*BOTH, (1, 7, 8, commit("s1", ONE, TWO), OK), (2, 9, 10, commit("s2", ONE, THREE), OK)),
        good=(
            *BOTH,
            (1, 7, 8, commit("s1", ONE, TWO), OK),
            (2, 9, 10, restore("s2"), got(TWO)),
            (2, 11, 12, commit("s2", TWO, FOUR), OK),
        ),
    ),
    Anomaly(
        "two winners at the same time",
        bad=(*BOTH, (1, 7, 10, commit("s1", ONE, TWO), OK), (2, 7, 10, commit("s2", ONE, THREE), OK)),
        good=(*BOTH, (1, 7, 10, commit("s1", ONE, TWO), OK), (2, 7, 10, commit("s2", ONE, THREE), CONFLICT)),
    ),
    Anomaly(
        "a stale read after an acknowledged commit",
        bad=(*BOTH, (1, 7, 8, commit("s1", ONE, TWO), OK), (3, 9, 10, restore("s3"), got(ONE))),
        good=(*BOTH, (1, 7, 10, commit("s1", ONE, TWO), OK), (3, 9, 12, restore("s3"), got(ONE))),
    ),
    Anomaly(
        "an acknowledged commit that is lost",
        bad=(*BEGUN, (1, 5, 6, commit("s1", ONE, TWO), OK), (3, 7, 8, restore("s3"), got(ONE))),
        good=(*BEGUN, (1, 5, None, commit("s1", ONE, TWO), None), (3, 7, 8, restore("s3"), got(ONE))),
    ),
    Anomaly(
        "a read of what was refused",
        bad=(*BEGUN, (1, 5, 6, commit("s1", ONE, TWO), CONFLICT), (3, 7, 8, restore("s3"), got(TWO))),
        good=(*BEGUN, (1, 5, None, commit("s1", ONE, TWO), None), (3, 7, 8, restore("s3"), got(TWO))),
    ),
    Anomaly(
        "a commit of unknown outcome that came and went",
        bad=(
            *BEGUN,
            (1, 5, None, commit("s1", ONE, TWO), None),
            (3, 7, 8, restore("s3"), got(TWO)),
            (3, 9, 10, restore("s3"), got(ONE)),
        ),
        good=(
            *BEGUN,
            (1, 5, None, commit("s1", ONE, TWO), None),
            (3, 7, 8, restore("s3"), got(ONE)),
            (3, 9, 10, restore("s3"), got(TWO)),
        ),
    ),
    Anomaly(
        "a read of what was aborted",
        bad=(
            *BEGUN,
            (1, 5, 6, commit("s1", ONE, TWO, "prepare"), OK),
            (1, 7, 8, act("abort", "s1", id=TWO), OK),
            (3, 9, 10, restore("s3"), got(TWO)),
        ),
        good=(
            *BEGUN,
            (1, 5, 6, commit("s1", ONE, TWO, "prepare"), OK),
            (1, 7, 8, act("abort", "s1", id=TWO), OK),
            (3, 9, 10, restore("s3"), got(ONE)),
        ),
    ),
    Anomaly(
        "a prepared checkpoint that nobody dropped and that is gone",
        bad=(
            *BOTH,
            (1, 7, 8, commit("s1", ONE, TWO, "prepare"), OK),
            (2, 9, 10, restore("s2"), got(ONE, TWO)),
            (2, 11, 12, restore("s2"), got(ONE)),
        ),
        # The swap of an abort landed and its answer was lost. What others did then fenced the second try.
        good=(
            *BOTH,
            (1, 7, 8, commit("s1", ONE, TWO, "prepare"), OK),
            (2, 9, 10, restore("s2"), got(ONE, TWO)),
            (1, 11, 18, act("abort", "s1", id=TWO), FENCED),
            (2, 12, 13, restore("s2"), got(ONE)),
            (2, 14, 15, commit("s2", ONE, THREE), OK),
        ),
    ),
    Anomaly(
        "a refused prepare that is committed",
        bad=(
            *BOTH,
            (1, 7, 12, commit("s1", ONE, TWO, "prepare"), CONFLICT),
            (2, 8, 9, restore("s2"), got(ONE, TWO)),
            (2, 10, 11, act("promote", "s2", id=TWO), OK),
        ),
        good=(
            *BOTH,
            (1, 7, 14, commit("s1", ONE, TWO, "prepare"), CONFLICT),
            (2, 8, 9, restore("s2"), got(ONE, TWO)),
            (2, 10, 11, act("abort", "s2", id=TWO), OK),
            (2, 12, 13, commit("s2", ONE, THREE), OK),
        ),
    ),
    Anomaly(
        "a prepare that lands after its abort",
        bad=(
            *BEGUN,
            (1, 5, None, commit("s1", ONE, TWO, "prepare"), None),
            (1, 7, 8, act("abort", "s1", id=TWO), OK),
            (3, 9, 10, restore("s3"), got(ONE, prepared=TWO)),
        ),
        good=(
            *BEGUN,
            (1, 5, None, commit("s1", ONE, TWO, "prepare"), None),
            (3, 6, 7, restore("s3"), got(ONE, prepared=TWO)),
            (1, 8, 9, act("abort", "s1", id=TWO), OK),
            (3, 10, 11, restore("s3"), got(ONE)),
        ),
    ),
    Anomaly(
        "what is only prepared, read as committed",
        bad=(*BEGUN, (1, 5, 6, commit("s1", ONE, TWO, "prepare"), OK), (3, 7, 8, restore("s3"), got(TWO))),
        good=(
            *BEGUN,
            (1, 5, 6, commit("s1", ONE, TWO, "prepare"), OK),
            (1, 7, 10, act("promote", "s1", id=TWO), OK),
            (3, 9, 10, restore("s3"), got(TWO)),
        ),
    ),
    Anomaly(
        "somebody's prepared checkpoint pushed aside",
        bad=(
            *BEGUN,
            (1, 5, 6, commit("s1", ONE, TWO, "prepare"), OK),
            (2, 7, 8, restore("s2"), got(ONE, prepared=TWO)),
            (2, 9, 10, commit("s2", ONE, THREE), OK),
        ),
        good=(
            *BEGUN,
            (1, 5, 6, commit("s1", ONE, TWO, "prepare"), OK),
            (2, 7, 8, restore("s2"), got(ONE, prepared=TWO)),
            (2, 9, 10, act("abort", "s2", id=TWO), OK),
            (2, 11, 12, commit("s2", ONE, THREE), OK),
        ),
    ),
    Anomaly(
        "a zombie that writes after a takeover that left no commit",
        bad=(
            *BOTH,
            (2, 7, 8, commit("s2", ONE, TWO, "prepare"), OK),
            (2, 9, 10, act("abort", "s2", id=TWO), OK),
            (1, 11, 12, commit("s1", ONE, THREE), OK),
        ),
        good=(
            *BOTH,
            (2, 7, 8, commit("s2", ONE, TWO, "prepare"), OK),
            (2, 9, 10, act("abort", "s2", id=TWO), OK),
            (1, 11, 12, commit("s1", ONE, THREE), FENCED),
        ),
    ),
    Anomaly(
        "fenced by nobody",
        bad=(*BEGUN, (1, 5, 6, commit("s1", ONE, TWO), FENCED)),
        good=(*BOTH, (2, 7, 8, commit("s2", ONE, THREE), OK), (1, 9, 10, commit("s1", ONE, TWO), FENCED)),
    ),
    Anomaly(
        "a checkpoint that rose from the dead",
        bad=(
            *BEGUN,
            (1, 5, 6, commit("s1", ONE, TWO), OK),
            (3, 7, 8, act("delete", target=ONE), OK),
            (3, 9, 10, act("list"), {"ids": [TWO]}),
            (3, 11, 12, act("list"), {"ids": [ONE, TWO]}),
        ),
        good=(
            *BEGUN,
            (1, 5, 6, commit("s1", ONE, TWO), OK),
            (3, 7, 10, act("delete", target=ONE), OK),
            (4, 8, 9, act("list"), {"ids": [ONE, TWO]}),
            (3, 11, 12, act("list"), {"ids": [TWO]}),
        ),
    ),
    Anomaly(
        "a savepoint that a cleanup took",
        bad=(
            *BEGUN,
            (1, 5, 6, commit("s1", ONE, TWO), OK),
            (3, 7, 8, act("savepoint", name="a", target=ONE), {"id": ONE}),
            (4, 9, 10, act("clean", keep_last=1), {"ids": [ONE]}),
        ),
        good=(
            *BEGUN,
            (1, 5, 6, commit("s1", ONE, TWO), OK),
            (3, 7, 8, act("savepoint", name="a", target=ONE), {"id": ONE}),
            (4, 9, 10, act("clean", keep_last=1), {"ids": []}),
            (4, 11, 12, act("list"), {"ids": [ONE, TWO]}),
        ),
    ),
    Anomaly(
        "a savepoint that keeps another checkpoint",
        bad=(
            *BEGUN,
            (1, 5, 6, commit("s1", ONE, TWO), OK),
            (3, 7, 8, act("savepoint", name="a", target=ONE), {"id": ONE}),
            (3, 9, 10, act("load", name="a"), {"content": f"content of {TWO}"}),
        ),
        good=(
            *BEGUN,
            (1, 5, 6, commit("s1", ONE, TWO), OK),
            (3, 7, 8, act("savepoint", name="a", target=ONE), {"id": ONE}),
            (3, 9, 10, act("load", name="a"), {"content": f"content of {ONE}"}),
        ),
    ),
    Anomaly(
        "a savepoint without an answer that keeps what had been replaced before it was asked for",
        bad=(
            *BEGUN,
            (1, 5, 6, commit("s1", ONE, TWO), OK),
            (3, 7, None, act("savepoint", name="a"), None),
            (4, 9, 10, act("load", name="a"), {"content": f"content of {ONE}"}),
        ),
        good=(
            *BEGUN,
            (1, 5, 8, commit("s1", ONE, TWO), OK),
            (3, 7, None, act("savepoint", name="a"), None),
            (4, 9, 10, act("load", name="a"), {"content": f"content of {ONE}"}),
        ),
    ),
    Anomaly(
        "a savepoint without an answer that keeps what came after its end",
        bad=(
            *BEGUN,
            (3, 5, None, act("savepoint", name="a"), None),
            (3, 7, 8, act("list"), {"ids": [ONE]}),
            (1, 9, 10, commit("s1", ONE, TWO), OK),
            (4, 11, 12, act("load", name="a"), {"content": f"content of {TWO}"}),
        ),
        good=(
            *BEGUN,
            (3, 5, None, act("savepoint", name="a"), None),
            (3, 7, 8, act("list"), {"ids": [ONE]}),
            (1, 6, 10, commit("s1", ONE, TWO), OK),
            (4, 11, 12, act("load", name="a"), {"content": f"content of {TWO}"}),
        ),
    ),
    Anomaly(
        "a cleanup that retires more than it was told",
        bad=(*BEGUN, (1, 5, 6, commit("s1", ONE, TWO), OK), (4, 7, 8, act("clean", keep_last=2), {"ids": [ONE]})),
        good=(*BEGUN, (1, 5, 6, commit("s1", ONE, TWO), OK), (4, 7, 8, act("clean", keep_last=1), {"ids": [ONE]})),
    ),
    Anomaly(
        "a rollback to another checkpoint than was asked for",
        bad=(
            *BEGUN,
            (1, 5, 6, commit("s1", ONE, TWO), OK),
            (1, 7, 8, act("rollback", "s1", target=ONE), {"id": FOUR}),
            (1, 9, 10, restore("s1"), {"id": FOUR, "content": f"content of {TWO}"}),
        ),
        good=(
            *BEGUN,
            (1, 5, 6, commit("s1", ONE, TWO), OK),
            (1, 7, None, act("rollback", "s1", target=ONE), None),
            (1, 9, 10, restore("s1"), {"id": FOUR, "content": f"content of {ONE}"}),
        ),
    ),
    Anomaly(
        "content that nobody wrote",
        bad=(*BEGUN, (2, 5, 6, restore("s2"), {"id": ONE, "content": "another"})),
        good=(*BEGUN, (2, 5, 6, restore("s2"), {"id": ONE})),
    ),
)
