"""Of a store with one change, digested anew, the library and the judge of the format think the same."""

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.judge import stores
from tests.judge.hostile import SPEC, Hostile, files_of, hostile

LIBRARY_ACCEPTS = "the library alone accepts it"
JUDGE_ACCEPTS = "the judge alone accepts it"
VERIFY_REFUSES = "both read the same, and the library's verification alone refuses it"
LOSES_KEYS = "the library has fewer keys"
DIFFER = "each reads something else"


@dataclass(frozen=True, slots=True)
class Excuse:
    kind: str
    """A regular expression for all of a change's kind."""
    disagreement: str
    why: str


MAY = (
    Excuse(
        r"[^:]*: raw \[{20}",
        LIBRARY_ACCEPTS,
        "A reader must accept 250 levels of lists and objects in it, itself the first, and may refuse more.",
    ),
    Excuse(
        r"manifest operators\.\?\.schema\.columns\.\*\.name: .*",
        LIBRARY_ACCEPTS,
        "It may accept names that are not text.",
    ),
    Excuse(
        r"manifest operators\.\?\.schema\.columns(: order|\.\*: copy|\.\*\.role: .*)",
        LIBRARY_ACCEPTS,
        "A reader may ignore the order of the columns, other metadata, and what a type says of nulls and comments.",
    ),
    Excuse(
        r"(manifest operators\.\?|segment)\.? ?objects\.\*\.\*: .*",
        VERIFY_REFUSES,
        "its own digest need not be compared where its slices are.",
    ),
)
"""Disagreements that the specification allows, each with its sentence."""

OPEN = (
    # The library is wrong.
    Excuse(
        r"parquet (delta|snapshot): row groups: .*",
        LIBRARY_ACCEPTS,
        "A file that is read as a whole may lack the digests of its row groups, or have wrong ones.",
    ),
    Excuse(
        r"parquet (delta|snapshot): rows twice", LIBRARY_ACCEPTS, "A key may be twice in a snapshot, or in a delta."
    ),
    Excuse(
        r"parquet delta: __change (-1|2|3)",
        LIBRARY_ACCEPTS,
        "A change that is none of 0, 1 and 2 is taken, and so is a deletion with values.",
    ),
    Excuse(
        r"parquet (delta|snapshot): (key|column) of .* as .*",
        LIBRARY_ACCEPTS,
        "A column of a type that is not narrower is cast: text to numbers, numbers to times, decimals to others.",
    ),
    Excuse(
        r"parquet (delta|snapshot): (column|__partition|__change|__kept) (id .*|twice)",
        LIBRARY_ACCEPTS,
        "Two columns of a file may have one field id.",
    ),
    Excuse(
        r"manifest operators\.\?\.schema\.(next_id|columns\.\*\.id): .*",
        LIBRARY_ACCEPTS,
        "Integers of a schema may be above 2^63 - 1.",
    ),
    Excuse(
        r"manifest operators\.\?\.schema\.columns\.\*\.type: .*",
        LIBRARY_ACCEPTS,
        "A column is cast to another type, a narrower one too; and is decimal(010,2) a type?",
    ),
    Excuse(
        r"manifest operators\.\?\.schema\.columns\.\*\.type: type='(var)?char\([1-9]\)'",
        JUDGE_ACCEPTS,
        "A column of char or varchar is refused.",
    ),
    Excuse(
        r"row: slice",
        LIBRARY_ACCEPTS,
        "Of rows that name one pack of a table, only the first is looked at: others may name a part of it.",
    ),
    Excuse(
        r"row: (digest|whole digest|null digest)",
        LIBRARY_ACCEPTS,
        "Of rows that name one pack of a table, only the first is compared with its digest.",
    ),
    # The text is not clear.
    Excuse(
        r"parquet (delta|snapshot): (rows (reversed|shuffled|nulls first)|__partition -?\d+)",
        LIBRARY_ACCEPTS,
        "Is a file out of order refused, by a reader that does not need the order?",
    ),
    Excuse(
        r"parquet delta: (__kept .*|rows (dropped|none)|one more column __kept .*)",
        LIBRARY_ACCEPTS,
        "What of __kept is refused: all null, out of order, no integers, on rows that do not merge, beside a value?",
    ),
    Excuse(
        r"parquet (delta|snapshot): (a column is named .*|one more column .*|our column is named .*)",
        JUDGE_ACCEPTS,
        "Is a column with a field id whose name is __kept, __partition or __change one of ours?",
    ),
    Excuse(
        r"manifest operators\.\?\.schema\.columns\.\*\.name: .*",
        JUDGE_ACCEPTS,
        "Is the case of __partition, __change and __kept ignored, and by which rules that of other names?",
    ),
)
"""Disagreements that are to be settled: the library is wrong there, or the text is not clear."""


@contextmanager
def placed(root: Path, files: dict[str, bytes], change: Hostile) -> Iterator[None]:
    """The store at `root`, which has these files, with the change for a while."""
    try:
        for path, data in change.files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
        yield
    finally:
        for path in change.files:
            if path in files:
                (root / path).write_bytes(files[path])
            else:
                (root / path).unlink(missing_ok=True)


def disagreement(root: Path) -> tuple[str | None, str]:
    """How the readers disagree about a store, if they do; and what they did."""
    judged, read = stores.judged(root), stores.library(root)
    verified = read is not None and stores.verified(root)
    if judged is None and not verified:
        return None, "refused by both"
    if judged is None:
        return LIBRARY_ACCEPTS, "disagreed about"
    if read is None:
        return JUDGE_ACCEPTS, "disagreed about"
    if judged == read and not verified:
        return VERIFY_REFUSES, "disagreed about"
    if judged == read:
        return None, "read alike by both"
    return LOSES_KEYS if _without_keys(judged, read) else DIFFER, "disagreed about"


def _without_keys(judged: Any, read: Any) -> bool:
    """Whether all that the library lacks are keys of maps."""
    ours, theirs = judged[2], read[2]
    if (*judged[:2], *judged[3:]) != (*read[:2], *read[3:]) or ours.keys() != theirs.keys():
        return False
    return all(
        ours[name] == theirs[name] or (isinstance(ours[name][1], list) and {*theirs[name][1]} < {*ours[name][1]})
        for name in ours
    )


def excuse(kind: str, found: str) -> Excuse | None:
    return next((e for e in (*MAY, *OPEN) if e.disagreement == found and re.fullmatch(e.kind, kind, re.S)), None)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, bytes]]]:
    """All valid stores, with what they have in each file."""
    folder = tmp_path_factory.mktemp("honest")
    roots = {"golden": Path(shutil.copytree(stores.GOLDEN, folder / "golden"))}
    roots |= {name: stores.make(name, folder / name.replace(" ", "-")) for name in stores.STORES}
    return {name: (root, files_of(root)) for name, root in roots.items()}


@pytest.mark.parametrize("allowed", MAY, ids=lambda allowed: allowed.kind)
def test_the_specification_says_what_readers_may_do(allowed: Excuse) -> None:
    assert allowed.why in " ".join(SPEC.read_text(encoding="utf-8").split())


def test_both_think_the_same_of_a_hostile_store(
    honest: dict[str, tuple[Path, dict[str, bytes]]], effort: Callable[[int, int], int], figures: Counter[str]
) -> None:
    wrong = []
    for seed in range(effort(150, 20_000)):
        random = Random(seed)
        name = random.choice(list(honest))
        root, files = honest[name]
        change = hostile(files, random)
        with placed(root, files, change):
            found, what = disagreement(root)
        excused = excuse(change.kind, found) if found else None
        figures["stores with one change"] += 1
        figures[f"stores {what}" + (", which is allowed or open" if excused else "")] += 1
        if found and not excused:
            wrong.append(f"seed {seed}, {name}: {change.kind}: {found}")
    assert wrong == []
