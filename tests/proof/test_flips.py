"""Damage anywhere in a whole store: verify names the object, or nothing reads it. Never is another value restored."""

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from pyspark_checkpointer.consumers.journal import yaml_format
from pyspark_checkpointer.errors import CheckpointError
from pyspark_checkpointer.manifests import object_paths
from tests.proof import seeds
from tests.proof.whole import Whole

Effort = Callable[[int, int], int]

REGIONS = 4
"""Parts of each object of which one bit is flipped in the short run."""


pytestmark = pytest.mark.usefixtures("small_manifests")


@pytest.fixture(scope="module")
def whole(small_manifests: None) -> Whole:
    return Whole()


def test_the_store_has_everything(whole: Whole) -> None:
    assert whole.verify(), whole.verify()
    assert not whole.survey().damage
    assert whole.wrong() == ([], [])
    kinds = Counter(path.split("/")[0] for path in whole.paths())
    assert kinds.keys() == {"_latest", "artifacts", "catalog", "manifests", "progress"}
    assert kinds["progress"] == 6
    assert {"packs", "segments"} <= {part for path in whole.paths() for part in path.split("/")}
    assert {path.rpartition(".")[2] for path in whole.paths() if path.startswith("artifacts/")} == {
        *("raw", "msgpack+zstd", "parquet")
    }


def places(size: int, all_of_them: bool, generator: random.Random) -> Iterator[tuple[int, int]]:
    """Bytes of an object, each with a bit: all of them, or one of each region, the first and the last among them."""
    count = size if all_of_them else min(size, REGIONS)
    for region in range(count):
        start, end = region * size // count, (region + 1) * size // count
        yield (
            start if region == 0 else end - 1 if region == count - 1 else generator.randrange(start, end),
            generator.randrange(8),
        )


def check_found(whole: Whole, paths: list[str], figures: Counter[str], *, reading: bool) -> None:
    """Whether what was done to these objects is found. `reading`: everything is read too, although it was."""
    if paths[0].startswith(object_paths.CONSUMERS):
        damage = whole.survey().damage
        assert any(path in problem for path in paths for problem in damage), f"{paths}: {damage}"
        figures["damage found by the survey of progress"] += 1
        return
    found = {finding.path for finding in whole.verify().findings} & set(paths)
    figures["damage found by verify" if found else "damage in what nothing reads"] += 1
    if found and not reading:
        return
    others, refused = whole.wrong()
    figures["wrong restores"] += len(others)
    assert not others, f"damage to {paths} changed what is read as {', '.join(others)}"
    if not found:
        assert not refused, f"verify says nothing of damage to {paths}, which stops {', '.join(refused)}"
    figures["times everything was read"] += 1


def test_every_flipped_bit_is_found_or_nothing_reads_it(whole: Whole, effort: Effort, figures: Counter[str]) -> None:
    generator = random.Random(6)
    figures["wrong restores"] = 0
    for path in whole.paths():
        data = whole.read(path)
        for at, bit in places(len(data), effort(False, True), generator):
            flipped = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            with whole.holding({path: flipped}):
                check_found(whole, [path], figures, reading=generator.randrange(effort(30, 200)) == 0)
            figures["bits flipped"] += 1
    assert whole.wrong() == ([], [])


def test_objects_cut_short_made_longer_emptied_or_exchanged_are_found(
    whole: Whole, effort: Effort, figures: Counter[str]
) -> None:
    generator = random.Random(6)
    figures["wrong restores"] = 0
    paths = whole.paths()
    for path in paths:
        data = whole.read(path)
        other = generator.choice([p for p in paths if p != path and whole.read(p) != data])
        if path.startswith(object_paths.CONSUMERS) != other.startswith(object_paths.CONSUMERS):
            other = path
        changes = [
            {path: b""},
            {path: data[:-1]},
            {path: data[: generator.randrange(len(data))]},
            {path: data + b"\0"},
            {path: data + data},
            {path: data[1:] + data[:1]},
            {path: whole.read(other), other: data},
        ]
        # Each takes a look at the whole store. In the short run an object has every other one, its neighbours the rest.
        for changed in changes[paths.index(path) % effort(2, 1) :: effort(2, 1)]:
            if any(whole.read(some) != new for some, new in changed.items()):
                with whole.holding(changed):
                    check_found(whole, list(changed), figures, reading=generator.randrange(effort(30, 3)) == 0)
                figures["objects cut, emptied, made longer or exchanged"] += 1


def test_a_flipped_bit_of_a_journal_is_refused_or_changes_nothing(effort: Effort, figures: Counter[str]) -> None:
    """The seal is a comment: where the flip makes it another comment, the rest is as it was."""
    data = seeds.journals()[0]
    before = yaml_format.decode("journal", data)
    bits = range(8 * len(data))
    for position in random.Random(6).sample(bits, effort(200, len(bits))):
        at, bit = divmod(position, 8)
        try:
            after = yaml_format.decode("journal", data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
        except CheckpointError:
            figures["damage found in the journal"] += 1
        else:
            assert after == before
            assert at <= data.index(b"\n")
            figures["damage in the seal of the journal, all below it whole"] += 1
        figures["bits flipped"] += 1
