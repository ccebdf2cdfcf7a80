"""A value of many megabytes: the same bytes as any other, and few copies of them at a time."""

import subprocess
import sys
from typing import Any

import msgpack
import pytest

from pyspark_checkpointer.manifests.keyed_records import decode, encode
from pyspark_checkpointer.manifests.msgpack_checks import MAX_KEPT_BYTES
from pyspark_checkpointer.manifests.msgpack_values import pack, unpack

PEAK = """
import os, sys, threading, time
from pyspark_checkpointer.manifests.keyed_records import decode, encode
from pyspark_checkpointer.manifests.msgpack_values import pack, unpack

SIZE = 128 << 20
peak = [0]

def used():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def watch():
    while True:
        peak[0] = max(peak[0], used())
        time.sleep(0.001)

threading.Thread(target=watch, daemon=True).start()
value = os.urandom(SIZE) if sys.argv[1] == "bytes" else "x" * SIZE
encode({"k": pack(1)})
before, peak[0] = used(), 0
packed = pack(value)
del value
stored = encode({"k": packed})
print(round((peak[0] - before) / SIZE + 1, 2))
del packed
before, peak[0] = used(), 0
(back,) = decode("x", *stored, 1).values()
print(round((peak[0] - before) / SIZE, 2))
"""


@pytest.mark.parametrize(
    "value",
    [b"\x01" * (MAX_KEPT_BYTES + 1), "x" * (MAX_KEPT_BYTES + 1), "é" * (MAX_KEPT_BYTES + 1)],
    ids=["bytes", "ascii", "text"],
)
def test_a_large_value_is_packed_as_any_other(value: Any) -> None:
    assert pack(value) == msgpack.packb(value)
    assert unpack(pack(value)) == value
    for records in (
        {"k": pack(value)},
        {"a": pack(1), "k": pack(value), "b": None, "z": pack([value])},
        {n: pack(value) for n in range(3)} | {"last": None},
    ):
        stored, size = encode(records)
        assert decode("x", stored, size, len(records)) == records


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how much memory is in use")
@pytest.mark.parametrize(("kind", "saving", "restoring"), [("bytes", 2.3, 4.2), ("text", 2.3, 4.2)])
def test_few_copies_of_a_large_value_are_made(kind: str, saving: float, restoring: float) -> None:
    done = subprocess.run([sys.executable, "-c", PEAK, kind], capture_output=True, text=True, check=True, timeout=300)
    save, restore = map(float, done.stdout.split())
    assert save <= saving
    assert restore <= restoring
