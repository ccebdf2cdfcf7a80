"""Decode the stored bytes of maps, and merge a chain into one map.

`encode.py` is the mirror image.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable

from pyspark_checkpointer.checkpoint.download import read_slices
from pyspark_checkpointer.errors import MalformedError
from pyspark_checkpointer.manifests import codecs
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.manifests.equal_keys import kinds_of, may_meet, now_equal, overlay
from pyspark_checkpointer.manifests.model import Artifact, Chain
from pyspark_checkpointer.runtime.host import Host
from pyspark_checkpointer.storage.base import Store

DECODE_INLINE = 32 << 10
"""Bytes, stored and decompressed, that are decoded sooner than a thread is woken."""

ARTIFACT_OVERHEAD = 1 << 10
"""Bytes that each artifact counts for besides its own: an empty one takes time, too."""

Records = dict[object, bytes | None]
"""Keys and packed values of one artifact; None where a delta deletes the key."""


Entries = tuple[dict[object, bytes], list[Records], set[type] | None]
"""The packed values of a partition, what each of its deltas holds, and the types of the keys if they are known."""

Merged = tuple[Chain, dict[object, bytes], list[Records], set[type] | None]
"""The chain of a partition, and its entries."""


async def read_decoded(
    store: Store, host: Host, codec: str, group: list[Artifact], turn: asyncio.Lock
) -> dict[Artifact, Records]:
    """Return the records of several artifacts of one object, which is fetched once.

    Objects are fetched together, and decoded one after the other, each in its `turn`. Decoding makes Python objects,
    for which a thread needs the interpreter's lock: several threads would pass it on again and again, and take a fifth
    longer on two processors.
    """
    slices = await read_slices(store, host, group)

    def decode_all() -> dict[Artifact, Records]:
        return {artifact: decode(codec, artifact, data) for artifact, data in zip(group, slices, strict=True)}

    # One thread for the whole group: waking one costs more than decoding a small partition.
    if is_quick_to_decode(group):
        return decode_all()
    async with turn:
        return await host.run(decode_all)


def is_quick_to_decode(artifacts: Iterable[Artifact]) -> bool:
    """Return whether artifacts are decoded and merged sooner than a thread is woken."""
    return sum(each.length + each.raw_size + ARTIFACT_OVERHEAD for each in artifacts) <= DECODE_INLINE


def decode(codec: str, artifact: Artifact, data: Bytes) -> Records:
    """Return the records of one artifact, by the codec of its operator."""
    records: Records = codecs.PURE_CODECS[codec].decode(artifact.path, data, artifact.raw_size, artifact.records)
    return records


def merge_all(chains: list[Chain], decoded: dict[Artifact, Records]) -> list[Merged]:
    """Return the result of `merge` for each partition of a map."""
    # A chain changes the records of its snapshot. Several chains may name one snapshot, for instance an empty one.
    times = Counter(chain[0] for chain in chains if chain)
    unchanged = {snapshot: dict(decoded[snapshot]) for snapshot, count in times.items() if count > 1}
    merged = []
    for chain in chains:
        if chain and chain[0] in unchanged:
            decoded[chain[0]] = dict(unchanged[chain[0]])
        merged.append((chain, *merge(chain, decoded)))
    return merged


def merge(chain: Chain, decoded: dict[Artifact, Records]) -> Entries:
    """Return a partition's packed values, what its deltas hold, and the key types.

    Changes the records of the snapshot in place: they become the values.
    """
    if not chain:
        return {}, [], set()
    data = decoded[chain[0]]
    # A search in C. A loop over a million records would take longer than merging them.
    if None in data.values():
        raise MalformedError(f"{chain[0].path}: a snapshot holds a deletion")
    deltas = [decoded[artifact] for artifact in chain[1:]]
    # `dict.update` keeps the key that was there, where the format wants the later one. That matters only for keys that
    # are equal without being the same, and is slow to look for.
    types = kinds_of((data, *deltas))
    differ = any(deltas) and may_meet((data, *deltas), types)
    for delta in deltas:
        if not differ:
            data.update(delta)
            continue
        for replaced in overlay(data, delta):
            if replaced.value is not None:  # a writer deletes the old key before it adds an equal one
                raise now_equal(replaced.old, replaced.new)
    # Once for all deltas: a key that one of them deletes may be set again by a later one, so what stands at the end
    # decides.
    deleted = {key for delta in deltas if None in delta.values() for key, value in delta.items() if value is None}
    for key in deleted:
        if data[key] is None:
            del data[key]
    # Where a key gave way to an equal one, there may be fewer types now.
    return data, deltas, None if differ else types  # type: ignore[return-value]  # the deletions are out
