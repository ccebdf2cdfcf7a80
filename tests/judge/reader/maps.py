"""Codecs: the entries of maps."""

import zlib

from tests.judge.reader.checks import about, need
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


def read_map(chains, partitions, load):
    whole_map = {}
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
                whole_map[c] = k, unpack(v)
    return list(whole_map.values())
