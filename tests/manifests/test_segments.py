"""Long partition lists: whatever changed, they load back equal, and a change costs what it touches."""

import json
import random
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_checkpointer.compaction import INLINE, INLINE_DELTAS, fits_in_manifest, segment_fold_start
from pyspark_checkpointer.manifests import codecs, object_paths, zstd
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.errors import (
    CheckpointError,
    IllegalArgumentError,
    MalformedError,
    UnsupportedFormatError,
)
from pyspark_checkpointer.manifests.manifest_json import decode_manifest, encode_manifest
from pyspark_checkpointer.manifests.model import (
    DELTA,
    SNAPSHOT,
    Artifact,
    Chain,
    CheckpointId,
    Json,
    Manifest,
    Operator,
    Patch,
    Ref,
    Segment,
    Tail,
)
from pyspark_checkpointer.manifests.segments import decode_segment, encode_segment, load, spill
from pyspark_checkpointer.manifests.zstd import decompress
from tests.manifests.samples import ID, PARENT, alone, changed, digest, packed

Chains = dict[int, Chain]

POLICY: Any = {"fits": fits_in_manifest, "fold_start": segment_fold_start}


class Line:
    """A line of checkpoints of one operator, as a store would keep it: each is read back from its bytes."""

    def __init__(self, partitions: int) -> None:
        self.operator = Operator(partitions, "explicit", codecs.RAW.name)
        self.objects: dict[str, bytes] = {}
        self._decoded: dict[Segment, dict[int, Patch]] = {}
        self.sequence = 0
        self.manifest = b""

    def next_id(self) -> CheckpointId:
        return CheckpointId(self.sequence + 1, f"{self.sequence + 1:08x}")

    def commit(self, chains: Chains, **changes: Any) -> int:
        """Write the next checkpoint; returns the bytes of its manifest and segments."""
        owner = self.next_id()
        operator = replace(self.operator, chains=chains, segments=(), patches=(), **changes)
        written, stored = spill(
            owner,
            "op",
            operator,
            self.operator if self.sequence else None,
            fits=fits_in_manifest,
            fold_start=segment_fold_start,
        )
        parent = Ref(CheckpointId(self.sequence, f"{self.sequence:08x}"), digest(1)) if self.sequence else None
        data = encode_manifest(Manifest(owner, parent, operators={"op": written}))
        for path, content in stored:
            assert path not in self.objects
            self.objects[path] = content
        self.sequence, self.manifest = owner.sequence, data
        self.operator = self.read(owner, data)
        return len(data) + sum(len(content) for _, content in stored)

    def read(self, owner: CheckpointId, data: bytes) -> Operator:
        operator = decode_manifest(owner, data).operators["op"]
        if not operator.segments:
            return operator
        return load("op", operator, [self._decode(operator, segment) for segment in operator.segments])

    def _decode(self, operator: Operator, segment: Segment) -> dict[int, Patch]:
        if segment not in self._decoded:
            data = self.objects[segment.path]
            self._decoded[segment] = decode_segment(segment, "op", operator.partitions, operator.codec, data)
        return self._decoded[segment]

    def write(self, partition: int, kind: Any = SNAPSHOT, size: int = 10) -> Artifact:
        return alone(partition, operator="op", kind=kind, owner=self.next_id(), size=size, codec=self.operator.codec)


def test_up_to_512_chains_stand_in_the_manifest() -> None:
    line = Line(2000)
    chains: Chains = {n: (line.write(n),) for n in range(INLINE)}
    line.commit(chains)
    assert line.operator.chains == chains
    assert not line.operator.segments
    chains[1999] = (line.write(1999),)
    line.commit(chains)
    assert line.operator.chains == chains
    assert len(line.operator.segments) == 1
    del chains[0]
    line.commit(chains)
    assert line.operator.chains == chains
    assert not line.operator.segments


def test_up_to_128_deltas_stand_in_the_manifest() -> None:
    line = Line(2000)
    chains: Chains = {n: (line.write(n), line.write(n, DELTA)) for n in range(INLINE_DELTAS)}
    line.commit(chains)
    assert not line.operator.segments
    line.commit(chains)
    assert not line.operator.segments
    chains[5] += (line.write(5, DELTA),)
    line.commit(chains)
    assert line.operator.chains == chains
    assert len(line.operator.segments) == 1
    chains[5] = chains[5][:1]
    line.commit(chains)
    assert line.operator.chains == chains
    assert not line.operator.segments


def test_chains_that_all_change_stand_in_the_manifest() -> None:
    line = Line(64)
    chains: Chains = {n: (line.write(n),) for n in range(32)}
    for _ in range(10):
        chains = {n: (*chain, line.write(n, DELTA)) for n, chain in chains.items()}
        line.commit(chains)
        assert not line.operator.segments
    chains[5] += (line.write(5, DELTA),)
    line.commit(chains)
    assert len(line.operator.segments) == 1


@pytest.mark.parametrize("partitions", [40, 60, 100, 500])
def test_ten_changed_partitions_cost_2_kb_each_however_long_the_chains_are(partitions: int) -> None:
    line, dice = Line(partitions), random.Random(partitions)
    chains: Chains = {n: (line.write(n),) for n in range(partitions)}
    line.commit(chains)
    written, commits = 0, 100
    for _ in range(commits):
        for n in dice.sample(range(partitions), 10):
            chain = chains[n]
            chains[n] = (*chain, line.write(n, DELTA)) if len(chain) <= 10 else (line.write(n),)
        written += line.commit(chains)
    assert line.operator.chains == chains
    assert written <= 2048 * 10 * commits


def test_a_checkpoint_that_changes_nothing_writes_no_segment() -> None:
    line = Line(1000)
    chains: Chains = {n: (line.write(n),) for n in range(1000)}
    line.commit(chains)
    stored = len(line.objects)
    assert line.commit(dict(chains)) < 600
    assert line.commit({p: chain[:0] + chain for p, chain in chains.items()}) < 600
    assert len(line.objects) == stored


def test_a_change_of_one_partition_writes_one_entry() -> None:
    line = Line(1000)
    chains: Chains = {n: (line.write(n),) for n in range(1000)}
    line.commit(chains)
    chains[7] += (line.write(7, DELTA),)
    line.commit(chains)
    assert [s.entries for s in line.operator.segments] == [1000, 1]
    assert line.operator.patches[1] == {7: Patch(1, chains[7][1:])}


ACTIONS: dict[str, Callable[[Line, int, Chain], Chain]] = {
    "snapshot": lambda line, p, chain: (line.write(p),),
    "delta": lambda line, p, chain: (*chain, line.write(p, DELTA)) if chain else (line.write(p),),
    "fold": lambda line, p, chain: (*chain[:1], line.write(p, DELTA, 20)) if chain else (),
    "fold the last": lambda line, p, chain: (*chain[:-1], line.write(p, DELTA, 30)) if len(chain) > 1 else chain,
    "cut": lambda line, p, chain: chain[:1],
    "drop": lambda line, p, chain: (),
    "nothing": lambda line, p, chain: chain[:0] + chain,
}


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.sampled_from([*ACTIONS]), st.integers(1, 500) | st.integers(1, 12), st.integers(0, 2**31)),
        min_size=1,
        max_size=20,
    )
)
def test_whatever_changes_loads_back_equal(steps: list[tuple[str, int, int]]) -> None:
    line = Line(900)
    chains: Chains = {n: (line.write(n),) for n in range(800)}
    line.commit(chains)
    for action, touched, seed in steps:
        chains = dict(chains)
        for partition in random.Random(seed).sample(range(900), touched):
            chain = ACTIONS[action](line, partition, chains.get(partition, ()))
            chains.pop(partition, None)
            if chain:
                chains[partition] = chain
        line.commit(chains)
        assert line.operator.chains == chains


def test_packs_load_back_equal() -> None:
    line = Line(600)
    owner = line.next_id()
    pack = packed([3] * 600, operator="op", owner=owner)
    line.commit({n: (artifact,) for n, artifact in enumerate(pack)})
    assert line.operator.chains == {n: (artifact,) for n, artifact in enumerate(pack)}


@pytest.mark.parametrize(
    ("codec", "partitions"),
    [(codecs.PARQUET.name, 2000), (codecs.RAW.name, 601)],
    ids=["another codec", "fewer partitions"],
)
def test_an_operator_made_anew_under_an_old_name_takes_nothing_over(codec: str, partitions: int) -> None:
    line = Line(2000)
    line.commit({n: (line.write(n),) for n in range(2000)})
    chains: Chains = {n: (alone(n, operator="op", owner=line.next_id(), codec=codec),) for n in range(601)}
    line.commit(chains, codec=codec, partitioner=codecs.CODECS[codec].partitioner, partitions=partitions)
    assert line.operator.chains == chains
    assert len(line.operator.segments) == 1


@pytest.mark.parametrize("touched", [1, 10, 100])
def test_a_touched_partition_costs_at_most_two_kilobytes(touched: int) -> None:
    """Amortised over the line, with deltas and now and then a snapshot, in 5,000 partitions."""
    line = Line(5_000)
    chains: Chains = {n: (line.write(n),) for n in range(5_000)}
    line.commit(chains)
    draw = random.Random(4)
    commits, spent, most = 50, 0, 0
    for _ in range(commits):
        chains = dict(line.operator.chains)
        for partition in draw.sample(range(5_000), touched):
            chain = chains[partition]
            chains[partition] = (line.write(partition),) if len(chain) > 9 else (*chain, line.write(partition, DELTA))
        spent += line.commit(chains)
        most = max(most, len(line.operator.segments))
        assert line.operator.chains == chains
    fixed = commits * 2500  # what every manifest holds besides: its own fields and the list of segments
    assert spent - fixed <= 2048 * touched * commits
    assert most <= 20


def test_ten_of_a_hundred_thousand_partitions() -> None:
    """Read back only at the end: the bound over a long line, in a few seconds."""
    partitions, touched, commits = 100_000, 10, 100
    owner = CheckpointId(1, "00000001")
    chains: Chains = {n: (small(n, SNAPSHOT, owner),) for n in range(partitions)}
    parent, _ = spill(
        owner,
        "op",
        Operator(partitions, "explicit", codecs.RAW.name, chains),
        None,
        fits=fits_in_manifest,
        fold_start=segment_fold_start,
    )
    draw = random.Random(7)
    spent, most = 0, 0
    for sequence in range(2, commits + 2):
        owner = CheckpointId(sequence, f"{sequence:08x}")
        chains = dict(parent.chains)
        for partition in draw.sample(range(partitions), touched):
            chains[partition] = (*chains[partition], small(partition, DELTA, owner))
        parent, stored = spill(
            owner,
            "op",
            replace(parent, chains=chains, segments=(), patches=()),
            parent,
            fits=fits_in_manifest,
            fold_start=segment_fold_start,
        )
        spent += sum(len(data) for _, data in stored)
        most = max(most, len(parent.segments))
    assert spent / (commits * touched) <= 2048
    assert most <= 20
    assert load("op", parent, parent.patches).chains == chains


def small(partition: int, kind: Any, owner: CheckpointId) -> Artifact:
    content = sha256(b"%d %d" % (partition, owner.sequence))
    return Artifact(f"artifacts/op/{partition}/{owner}.{kind}.{content}.raw", kind, 0, 9, 9, 9, 1, content)


# ---- bad segments ---------------------------------------------------------------------------------------------------

PATCHES = {
    0: Patch(0, (alone(0), alone(0, kind=DELTA))),
    1: Patch(2, (packed([4, 5], kind=DELTA)[1],)),
    2: Patch(0, ()),
}
SEGMENT, OBJECT = encode_segment(ID, "totals", PATCHES)
RAW = zstandard.decompress(OBJECT.data)


def decode(raw: bytes, segment: Segment = SEGMENT, **changes: Any) -> dict[int, Patch]:
    data = zstandard.compress(raw)
    return decode_segment(replace(segment, raw_size=len(raw), **changes), "totals", 3, codecs.RAW.name, data)


def test_a_segment_comes_back() -> None:
    assert decode_segment(SEGMENT, "totals", 3, codecs.RAW.name, OBJECT.data) == PATCHES
    expected = Segment(object_paths.segment(ID, sha256(OBJECT.data)), len(OBJECT.data), len(RAW), 3)
    assert expected == SEGMENT
    assert encode_segment(ID, "totals", dict(reversed(PATCHES.items()))) == (SEGMENT, OBJECT)


def test_fields_of_a_newer_writer_do_no_harm() -> None:
    assert decode(changed(RAW, "x_new", {"a": [1]})) == PATCHES


def test_a_newer_segment_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedFormatError, match=rf"^{SEGMENT.path}: has format version 2"):
        decode(changed(RAW, "format_version", 2))


BAD_FIELDS: dict[str, list[Json]] = {
    "format_version": [..., None, 0, "1", True, 1.5],
    "operator": [..., None, 1, "", "other"],
    "objects": [..., None, {}, [], [None], [["_latest", 1]], [["../x", 1]]],
    "objects.0.0": [alone(1).path, alone(0, codec="parquet").path],
    "objects.0.1": [None, -1, 1.0, "1", True],
    "patches": [
        ...,
        None,
        [],
        {},
        {"0": [0, []], "1": [0, []]},
        {"0": [0, []]},
        {"0": [0, []], "1": [0, []], "3": [0, []]},
    ],
    "patches.0": [
        None,
        [],
        {},
        [0],
        [[]],
        [0, [], 0],
        ["0", []],
        [-1, []],
        [True, []],
        [0, None],
        [0, {}],
        [0, [None]],
    ],
    "patches.0.1.0": [None, [], [0], [0, 1], [9, 1, 1], [-1, 1, 1], [0, -1, 1], [0, 1, -1], [0, 1, 1, 1]],
    "patches.1.1.0.3": [None, "full", 1],
    "patches.1.1.0.4": [None, -1, 5, 2**63],
    "patches.1.1.0.6": [1, "", "A" * 64, None],
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        pytest.param(path, value, id=f"{path}={'(absent)' if value is ... else ascii(value)[:40]}")
        for path, values in BAD_FIELDS.items()
        for value in values
    ],
)
def test_a_bad_segment_is_malformed(path: str, value: Json) -> None:
    with pytest.raises(MalformedError, match=rf"^{SEGMENT.path}: "):
        decode(changed(RAW, path, value))


def test_a_segment_names_each_object_once_and_none_in_vain() -> None:
    objects = json.loads(RAW)["objects"]
    for bad in ([*objects, objects[0]], [*objects, [alone(2).path, 10]]):
        with pytest.raises(MalformedError, match=r"objects: (one is there twice|no row names)"):
            decode(changed(RAW, "objects", bad))


def test_an_object_may_lie_in_the_folder_of_an_older_name() -> None:
    renamed = {0: Patch(0, (alone(0, operator="other"),))}
    segment, stored = encode_segment(ID, "totals", renamed)
    assert decode_segment(segment, "totals", 3, codecs.RAW.name, stored.data) == renamed


def test_an_artifact_is_never_younger_than_its_segment() -> None:
    young = {0: Patch(0, (alone(0, owner=CheckpointId(43, "00000000")),))}
    segment, stored = encode_segment(ID, "totals", young)
    with pytest.raises(MalformedError, match="does not belong"):
        decode_segment(segment, "totals", 3, codecs.RAW.name, stored.data)


def test_another_number_of_entries_is_malformed() -> None:
    with pytest.raises(MalformedError, match="expected 4 entries, found 3"):
        decode(RAW, entries=4)


@pytest.mark.parametrize(
    ("patches", "why"),
    [
        ([{0: Patch(1, ())}], "keeps 1 of 0"),
        ([{0: Patch(0, (alone(0),))}, {0: Patch(2, ())}], "keeps 2 of 1"),
        ([{0: Patch(0, (alone(0),))}, {0: Patch(0, ())}, {0: Patch(1, ())}], "keeps 1 of 0"),
        ([{0: Patch(0, (alone(0, kind=DELTA),))}], "one snapshot, then deltas"),
        ([{0: Patch(0, (alone(0), alone(0)))}], "one snapshot, then deltas"),
        ([{0: Patch(0, (alone(0),))}, {0: Patch(1, (alone(0, owner=ID),))}], "one snapshot, then deltas"),
        ([{0: Patch(0, (alone(0),))}, {0: Patch(0, (alone(0, kind=DELTA),))}], "one snapshot, then deltas"),
    ],
)
def test_patches_that_make_no_chain_are_malformed(patches: list[dict[int, Patch]], why: str) -> None:
    with pytest.raises(MalformedError, match=rf"^operator 'op': partition 0: .*{why}"):
        load("operator 'op'", Operator(1, "explicit", codecs.RAW.name), patches)


@pytest.mark.parametrize("other", [{"size": 11}, {"tail": Tail(2, digest("tail"))}])
def test_two_segments_say_the_same_of_an_object(other: dict[str, Any]) -> None:
    """Even where the second one hides all that the first one says."""
    below, above = alone(0), replace(alone(0), **other)
    load("operator 'op'", Operator(1, "explicit", codecs.RAW.name), [{0: Patch(0, (below,))}, {0: Patch(0, (below,))}])
    with pytest.raises(MalformedError, match=f"^operator 'op': two segments disagree about {below.path}"):
        load(
            "operator 'op'",
            Operator(1, "explicit", codecs.RAW.name),
            [{0: Patch(0, (below,))}, {0: Patch(0, (above,))}],
        )


@pytest.mark.parametrize(
    "artifact", [replace(alone(0), path="../x"), replace(alone(0), digest=digest("other")), replace(alone(0), offset=1)]
)
def test_an_artifact_that_contradicts_its_path_is_not_written(artifact: Artifact) -> None:
    with pytest.raises(IllegalArgumentError):
        encode_segment(ID, "totals", {0: Patch(0, (artifact,))})


def test_every_flipped_bit_ends_in_the_tree() -> None:
    for at in range(8 * len(OBJECT.data)):
        bad = bytearray(OBJECT.data)
        bad[at // 8] ^= 1 << at % 8
        with suppress(CheckpointError):
            decode_segment(SEGMENT, "totals", 3, codecs.RAW.name, bytes(bad))
    for at in range(8 * len(RAW)):
        bad = bytearray(RAW)
        bad[at // 8] ^= 1 << at % 8
        with suppress(CheckpointError):
            decode(bytes(bad))


BOMBS: dict[str, tuple[bytes, int]] = {
    "much more than was said": (zstandard.compress(bytes(200_000_000)), 1000),
    "exabytes were said": (zstandard.compress(b"{}"), 2**62),
    "gigabytes were said": (zstandard.compress(b"{}"), 2**33),
    "exabytes stand in the header": (b"\x28\xb5\x2f\xfd\xe0" + (2**60).to_bytes(8, "little") + b"\x01\x00\x00", 0),
    "deep lists": (zstandard.compress(b'{"format_version":1,"x":' + b"[" * 10**6), 24 + 10**6),
    "a number of a million digits": (zstandard.compress(b'{"format_version":' + b"9" * 10**6 + b"}"), 19 + 10**6),
}


@pytest.mark.parametrize(("data", "raw_size"), BOMBS.values(), ids=BOMBS)
def test_a_bomb_ends_quickly_and_small(data: bytes, raw_size: int) -> None:
    segment = replace(SEGMENT, size=len(data), raw_size=raw_size)
    tracemalloc.start()
    started = time.monotonic()
    try:
        with pytest.raises(MalformedError, match=rf"^{SEGMENT.path}: "):
            decode_segment(segment, "totals", 3, codecs.RAW.name, data)
        assert time.monotonic() - started < 5
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=1000), st.sampled_from(["content size", "stream", "checksum"]))
def test_one_whole_frame_and_nothing_else(raw: bytes, how: str) -> None:
    compressor = zstandard.ZstdCompressor(write_checksum=how == "checksum")
    if how == "stream":
        stream = compressor.compressobj()
        data = stream.compress(raw) + stream.flush()
    else:
        data = compressor.compress(raw)
    assert decompress("obj", data, len(raw)) == raw
    for bad in (data[:-1], data + b"\0", data + data, b"\0" + data, b""):
        with pytest.raises(MalformedError, match=r"^obj: "):
            decompress("obj", bad, len(raw))
    for size in (len(raw) + 1, len(raw) - 1):
        if size >= 0:
            with pytest.raises(MalformedError, match=r"^obj: "):
                decompress("obj", data, size)


def test_a_megabyte_of_many_blocks_comes_back() -> None:
    for raw in (random.Random(1).randbytes(1_000_000), bytes(1_000_000), b"".join(b"%d," % n for n in range(200_000))):
        assert decompress("obj", zstandard.compress(raw), len(raw)) == raw


def test_the_names_of_this_module_are_what_the_specification_says() -> None:
    assert (INLINE, INLINE_DELTAS, zstd.MAX_BLOCK) == (512, 128, 131_072)
    assert PARENT < ID
