"""Encode records of maps, by the codec of their operator, as the bytes to store.

`decode.py` is the mirror image.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pyspark_checkpointer.checkpoint.upload import ChainSlot, EncodedBlob, Uploader
from pyspark_checkpointer.keyed.changes import PartitionChange
from pyspark_checkpointer.manifests import codecs
from pyspark_checkpointer.manifests.model import Artifact
from pyspark_checkpointer.runtime.host import Host

ENCODE_BATCH = 2 << 20
"""Bytes of small partitions that are encoded in one go."""

ENCODE_INLINE = 64 << 10
"""Bytes that are encoded sooner than a thread answers: a thousand short records."""


class ToEncode(NamedTuple):
    """The change of one partition of a map, and the slot for its artifact."""

    slot: ChainSlot
    change: PartitionChange
    known: Artifact | None
    """The parent's snapshot, which is used again if the new one has the same bytes."""


async def submit(uploader: Uploader, host: Host, changes: Iterable[ToEncode]) -> None:
    """Begin to encode and write changes; wait while too many writes are under way."""
    for batch in _in_batches(changes):
        await uploader.queue.submit(_write_encoded(uploader, host, batch), _size_of(batch))


def _size_of(batch: Iterable[ToEncode]) -> int:
    """Return about how many bytes the records of a batch take."""
    return sum(one.change.size for one in batch)


def _in_batches(changes: Iterable[ToEncode]) -> Iterator[list[ToEncode]]:
    """Group changes, so that a map of many small partitions wakes few threads."""
    batch: list[ToEncode] = []
    size = 0
    for one in changes:
        batch.append(one)
        size += one.change.size
        if size >= ENCODE_BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


async def _write_encoded(uploader: Uploader, host: Host, batch: list[ToEncode]) -> None:
    """Encode a batch and write it.

    Each change is released once it is encoded: the map may then change its values again.
    """

    def encode() -> list[EncodedBlob]:
        blobs = []
        for slot, change, _ in batch:
            data, raw_size = codecs.PURE_CODECS[slot.codec].encode(change.records)
            blobs.append(EncodedBlob(change.kind, data, raw_size, len(change.records)))
            # As early as possible: until then a map has to copy the partition's dict before it changes it.
            change.release()
        return blobs

    # One thread for the whole batch: waking one costs more than encoding a small partition.
    blobs = encode() if _size_of(batch) <= ENCODE_INLINE else await host.run(encode)
    for (slot, _, known), blob in zip(batch, blobs, strict=True):
        await uploader.write(slot, blob, known)
