"""The memory that one very large partition takes, beyond what its user holds: each step in a process of its own."""

import hashlib
import io
import random
from collections.abc import Callable, Iterator
from typing import Any

from pyspark_checkpointer import Checkpointer, KeyedState
from tests.proof.load.gauges import MIB, answer, peak

VALUE = 64 << 10
"""Bytes of a value of the keyed state."""

TIMEOUT = 600.0


def pieces(size: int) -> Iterator[bytes]:
    """Bytes in which every place differs from every other: each piece begins with its number."""
    noise = random.Random(0).randbytes(MIB)
    for number in range(-(-size // MIB)):
        yield (b"%016d" % number + noise[16:])[: size - number * MIB]


def digest(size: int) -> str:
    seen = hashlib.sha256()
    for piece in pieces(size):
        seen.update(piece)
    return seen.hexdigest()


def whole(size: int) -> bytes:
    buffer = io.BytesIO()
    for piece in pieces(size):
        buffer.write(piece)
    return buffer.getvalue()


def values(size: int) -> dict[int, bytes]:
    noise = random.Random(0)
    return {key: noise.randbytes(VALUE) for key in range(size // VALUE)}


def save(client: Checkpointer, size: int, target: str) -> tuple[int, bool]:
    data = whole(size)
    with peak() as most, client.begin() as cp:
        cp.snapshot("op", 0, data)
    return most.bytes, True


def restore(client: Checkpointer, size: int, target: str) -> tuple[int, bool]:
    with peak() as most:
        restored = client.restore()
        assert restored is not None
        (data,) = restored.operator("op").partition(0)
    return most.bytes, (len(data), hashlib.sha256(data).hexdigest()) == (size, digest(size))


def verify(client: Checkpointer, size: int, target: str) -> tuple[int, bool]:
    with peak() as most:
        found = client.verify()
    return most.bytes, not found.findings and found.bytes == size


def export(client: Checkpointer, size: int, target: str) -> tuple[int, bool]:
    with peak() as most:
        client.export(None, target, client._config.storage_options)
    found = Checkpointer(target, client._config.storage_options).verify()
    return most.bytes, not found.findings and found.bytes == size


def save_keyed(client: Checkpointer, size: int, target: str) -> tuple[int, bool]:
    state = KeyedState(values(size), partitions=1)
    with peak() as most, client.begin() as cp:
        cp.save("keyed", state)
    return most.bytes, True


def restore_keyed(client: Checkpointer, size: int, target: str) -> tuple[int, bool]:
    with peak() as most:
        restored = client.restore()
        assert restored is not None
        state = restored.keyed("keyed")
    return most.bytes, dict(state) == values(size)


STEPS: dict[str, Callable[[Checkpointer, int, str], tuple[int, bool]]] = {
    step.__name__: step for step in (save, restore, verify, export, save_keyed, restore_keyed)
}


def measure_partition(
    step: str, url: str, options: dict[str, Any] | None, size: int, target: str = ""
) -> dict[str, Any]:
    """The peak of one step above what was held before, and whether it did what it should."""
    with Checkpointer(url, options, timeout=TIMEOUT) as client:
        client.read_latest()  # connections, and the packages they need, are there before
        found, right = STEPS[step](client, size, target)
    return {"peak": found, "right": right}


if __name__ == "__main__":
    answer(measure_partition)
