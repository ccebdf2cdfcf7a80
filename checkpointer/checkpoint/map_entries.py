"""Read the keys and packed values of a map, without making a map of them."""

from pyspark_checkpointer.checkpoint.decode import decode, merge
from pyspark_checkpointer.checkpoint.restore import CheckpointReader
from pyspark_checkpointer.manifests.keyed_records import check_places
from pyspark_checkpointer.manifests.map_expiry import MapRule, living
from pyspark_checkpointer.manifests.model import Clock


async def living_entries(reader: CheckpointReader, name: str, partition: int) -> dict[object, bytes]:
    """Return the keys and packed values of one partition of a map."""
    found = await _stored(reader, name, partition)
    if reader.operator(name).schema is None:
        return found
    return living(f"operator {name!r}", found, *reader.expiry(name))[0]


async def expired_keys(
    reader: CheckpointReader, name: str, partition: int, rule: MapRule, clock: Clock | None
) -> set[object]:
    """Return the living keys of a map's partition that expire by a rule.

    A clock says what is expired.
    """
    found = await _stored(reader, name, partition)
    here = living(f"operator {name!r}", found, *reader.expiry(name))[0]
    return here.keys() - living(f"operator {name!r}", found, rule, clock)[0].keys()


async def _stored(reader: CheckpointReader, name: str, partition: int) -> dict[object, bytes]:
    """Return the keys and values of one partition as they are stored."""
    stored = await reader.partition(name, partition)
    operator = reader.operator(name)
    chain = operator.chains[partition]

    def merged() -> dict[object, bytes]:
        pairs = zip(chain, stored, strict=True)
        decoded = {artifact: decode(operator.codec, artifact, data) for artifact, data in pairs}
        entries, deltas, _ = merge(chain, decoded)
        check_places(entries, partition, operator.partitions, chain, deltas)
        return entries

    return await reader.session.host.run(merged)


__all__ = ["expired_keys", "living_entries"]
