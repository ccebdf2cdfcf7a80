"""Of a store with one change, digested anew, the library and the judge of the format think the same."""

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from tests.judge import readings, stores
from tests.judge.hostile import SPEC, Hostile, files_of, hostile

LIBRARY_ACCEPTS = "the library alone accepts it"
JUDGE_ACCEPTS = "the judge alone accepts it"
READER_ACCEPTS = "the library's reader accepts it, and the judge and the library's verification refuse it"
VERIFY_REFUSES = "both read the same, and the library's verification alone refuses it"
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
        r"(manifest operators\.\?|segment)\.? ?objects\.\*\.\*: .*",
        VERIFY_REFUSES,
        "Who compares all slices that are used need not compare the whole.",
    ),
    Excuse(
        r"(manifest operators\.\?|segment)\.? ?objects\.\*\.\*: .*",
        READER_ACCEPTS,
        "a range if one slice of it is wanted, else all of it.",
    ),
    Excuse(
        r"manifest operators\.\?\.partitions: .*|parquet delta: __partition .*"
        r"|parquet [^:]*: (odd values in )?key of .*"
        # Which columns are the key, their types and their order decide the partition too.
        r"|manifest operators\.\?\.schema\.columns.*",
        VERIFY_REFUSES,
        "A reader need not notice a key of a table in another partition; a verifier does.",
    ),
    Excuse(
        r"parquet (delta|snapshot): row groups: .*",
        LIBRARY_ACCEPTS,
        "A reader that has compared the digest of the whole file may ignore this key and the tail.",
    ),
)
"""Disagreements that the specification allows, each with its sentence."""


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
    judged, read = readings.judged(root), readings.library(root)
    verified = read is not None and readings.verified(root)
    if judged is None and read is None:
        return None, "refused by both"
    if judged is None and not verified:
        return READER_ACCEPTS, "disagreed about"
    if judged is None:
        return LIBRARY_ACCEPTS, "disagreed about"
    if read is None:
        return JUDGE_ACCEPTS, "disagreed about"
    if judged == read and not verified:
        return VERIFY_REFUSES, "disagreed about"
    if judged == read:
        return None, "read alike by both"
    return DIFFER, "disagreed about"


def excuse(kind: str, found: str) -> Excuse | None:
    return next((e for e in MAY if e.disagreement == found and re.fullmatch(e.kind, kind, re.S)), None)


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
        figures[f"stores {what}" + (", which is allowed" if excused else "")] += 1
        if found and not excused:
            wrong.append(f"seed {seed}, {name}: {change.kind}: {found}")
    assert wrong == []
