"""Codecs: the entries of maps."""

import zlib

from tests.judge.reader.checks import about, need
from tests.judge.reader.files import order
from tests.judge.reader.frames import unzstd
from tests.judge.reader.keys import canon, distinct, same, zoned
from tests.judge.reader.partitioner import canonical
from tests.judge.reader.values import unpack, value


def entries(data, row):
    """Codecs, msgpack+zstd: [(canonical key, key, packed value or None)]"""
    b, i, out, seen = unzstd(data, row["raw"]), 0, [], set()
    while i < len(b):
        keys, i = value(b, i, 0, 0)
        values, i = value(b, i, 0, 0)
        need(type(keys) is list and type(values) is list and len(keys) == len(values), "no pair of equal arrays")
        for k, v in zip(keys, values, strict=True):
            distinct(seen, k)
            need((type(v) is bytes and v) or (v is None and row["kind"] == "delta"), f"the value {v!r:.80}")
            out.append((canon(k), k, v))
    need(len(out) == row["records"], f"{len(out)} records, expected {row['records']}")
    return out


def without_time(v, op, clock):
    """Expiry of maps: the packed value, and whether its entry is expired."""
    at = None
    if op["schema"] is not None and v[:1] == b"\xc1":
        need(len(v) > 9, "a time without a value")
        at, v = int.from_bytes(v[1:9], "big", signed=True), v[9:]
    if op["expire"] is None:
        return v, False
    after, since = op["expire"][0], order(op["expire"][1])
    return v, (since if at is None else max(at, since)) + after <= order(clock)


def read_map(op, load, clock):
    whole_map, chains, partitions = {}, op["chains"], op["partitions"]
    need(clock is not None or op["expire"] is None, "entries expire, and the manifest has no clock")
    for p, chain in chains.items():
        state = {}
        for row in chain:
            data = load(row)
            with about(f"{row['object']['path']}, partition {p}"):
                for c, k, v in entries(data, row):
                    old, below = state.pop(c, (k, None))
                    need(
                        below is None or same(old, k) or not (zoned(old) or zoned(k)),
                        f"{old!r:.80} and {k!r:.80} are equal by the rules of a zone",
                    )
                    state[c] = k, v  # key and value are replaced
        for c, (k, v) in state.items():
            if v is None:
                continue
            need(
                zoned(k) or zlib.crc32(canonical(k)) % partitions == p,
                f"{k!r:.80} in partition {p} of {partitions}, which is not its own",
            )
            need(c not in whole_map, f"equal keys in two partitions: {k!r:.80} and {whole_map.get(c, '')!r:.80}")
            with about(f"the value of {k!r:.80}"):
                v, expired = without_time(v, op, clock)
                whole_map[c] = k, None if expired else unpack(v), expired
    return [(k, v) for k, v, expired in whole_map.values() if not expired]
