"""Manifests and their segments, down to the rows of artifacts."""

import hashlib
import re

from tests.judge.reader.checks import (
    MAX,
    about,
    anything,
    array,
    digest,
    get,
    ident,
    integer,
    matches,
    need,
    obj,
    or_null,
    sequence,
    size,
    text,
    time,
)
from tests.judge.reader.frames import unzstd
from tests.judge.reader.objects import DEC, SEGMENT, compare, fetch, length, name, object_path, parse, version
from tests.judge.reader.pointer import reference
from tests.judge.reader.schema import read_expire, read_map_expire, read_schema

PARTITIONERS = {"raw": "explicit", "msgpack+zstd": "crc32-key-1", "parquet": "spark-murmur3-1"}
NOTHING = hashlib.sha256(b"").hexdigest()


def read_objects(rows, codec, upto):
    out = []
    for v in array(rows):
        need(type(v) is list and len(v) in (2, 4), f"{v!r:.200} is no row of objects")
        o = object_path(v[0])
        o["size"] = size(v[1])
        need(o["codec"] == codec, f"{v[0]}: not {codec}")
        need(sequence(o["id"]) <= upto, f"{v[0]}: a later sequence than {upto}")
        o["tail"] = (integer(1, o["size"])(v[2]), digest(v[3])) if len(v) == 4 else None
        out.append(o)
    need(len({o["path"] for o in out}) == len(out), "an object twice")
    return out


def read_row(v, objects, partition, codec, used):
    need(type(v) is list and len(v) in (3, 7), f"{v!r:.200} is no row")
    index = integer(0, len(objects) - 1)(v[0])
    used.add(index)
    o = objects[index]
    row = {"object": o, "raw": size(v[1]), "records": size(v[2])}
    if len(v) == 3:
        need(o["partition"] == partition, f"{o['path']}: not an object of partition {partition}")
        row |= {"kind": o["kind"], "offset": 0, "length": o["size"], "digest": o["digest"]}
    else:
        need(o["kind"] is None, f"{o['path']}: not a pack")
        need(v[3] in ("snapshot", "delta"), f"the kind {v[3]!r:.80}")
        offset = integer(0, o["size"])(v[4])
        n = integer(0, o["size"] - offset)(v[5])
        d = o["digest"] if v[6] is None else digest(v[6])
        need(d != o["digest"] or n == o["size"], "the pack's digest, but not all of the pack")
        row |= {"kind": v[3], "offset": offset, "length": n, "digest": d}
    if codec == "raw":
        need(row["raw"] == row["length"] and row["records"] == 1, "raw size or records of a raw artifact")
    if codec == "parquet" and row["kind"] == "delta":  # Tables
        need(len(v) == 7 and row["digest"] == o["digest"], "a delta of a table that is not all of a pack")
    if codec == "parquet" and row["kind"] == "snapshot" and len(v) == 7:
        need(v[1:6] == [0, 0, "snapshot", 0, 0], "a snapshot of a table in a pack, not empty")
        need(row["digest"] == NOTHING, "an empty snapshot of a table with a digest")
    elif codec == "parquet":
        need(o["size"] > 0, "an empty file")
    return row


def partition_number(v, partitions):
    need(re.fullmatch(DEC, v) and int(v) < partitions, f"the partition {v!r:.80} of {partitions}")
    return int(v)


def check_chain(chain, partition):
    kinds = [r["kind"] for r in chain]
    need(kinds == ["snapshot"] + ["delta"] * (len(kinds) - 1), f"chain {partition}: {kinds}")


def check_used(used, objects):
    need(len(used) == len(objects), f"objects in no row: {sorted(set(range(len(objects))) - used)}")


def read_segments(root, rows, op, codec, partitions, upto):
    need(array(rows), "no segments")
    chains, paths, known = {}, set(), {}
    for v in rows:
        need(type(v) is list and len(v) == 4, f"{v!r:.200} is no row of segments")
        m = SEGMENT.fullmatch(text(v[0]))
        need(m and sequence(m[1]) <= upto, f"the segment {v[0]!r:.200}")
        need(v[0] not in paths, f"{v[0]} twice")
        paths.add(v[0])
        stored, raw, count = map(integer(1), v[1:])
        data = fetch(root, v[0])
        with about(v[0]):
            length(data, stored)
            compare(data, m[2])
            o = parse(unzstd(data, raw))
            version(o)
            need(get(o, "operator", text) == op, "a segment of another operator")
            objects, used = read_objects(get(o, "objects", anything), codec, sequence(m[1])), set()
            for one in objects:
                said = one["size"], one["tail"]
                need(known.setdefault(one["path"], said) == said, f"{one['path']}: another size or tail")
            patches = get(o, "patches", obj)
            need(len(patches) == count, f"{len(patches)} patches, expected {count}")
            for key, patch in patches.items():
                p = partition_number(key, partitions)
                need(type(patch) is list and len(patch) == 2, f"{patch!r:.200} is no patch")
                below = chains.pop(p, [])
                keep = integer(0, len(below))(patch[0])
                chain = below[:keep] + [read_row(r, objects, p, codec, used) for r in array(patch[1])]
                if chain:
                    check_chain(chain, p)
                    chains[p] = chain
            check_used(used, objects)
    return chains


def read_operator(root, op, o, upto):
    partitions, partitioner = get(obj(o), "partitions", integer(0, 2**31)), get(o, "partitioner", text)
    codec, schema = get(o, "codec", text), get(o, "schema", anything)
    need(codec in PARTITIONERS, f"the codec {codec!r:.80}")
    need(partitioner == PARTITIONERS[codec], f"{codec} with {partitioner!r:.80}")
    least, most = {"raw": (0, 2**31), "msgpack+zstd": (1, 131072), "parquet": (1, 2**31 - 1)}[codec]
    integer(least, most)(partitions)
    columns = read_schema(schema) if codec == "parquet" else None
    expire = read_expire(schema, columns) if codec == "parquet" else None
    if codec == "msgpack+zstd" and schema is not None:
        expire = read_map_expire(schema)
    if "segments" in o:
        need("objects" not in o and "chains" not in o, "segments beside chains")
        chains = read_segments(root, o["segments"], op, codec, partitions, upto)
    else:
        objects, chains, used = read_objects(get(o, "objects", anything), codec, upto), {}, set()
        for key, rows in get(o, "chains", obj).items():
            p = partition_number(key, partitions)
            need(array(rows), f"chain {p} has no rows")
            chains[p] = [read_row(r, objects, p, codec, used) for r in rows]
            check_chain(chains[p], p)
        check_used(used, objects)
    return {
        "partitions": partitions,
        "codec": codec,
        "schema": schema,
        "columns": columns,
        "expire": expire,
        "chains": dict(sorted(chains.items())),
    }


def check_job(j):
    get(obj(j), "query_id", text), get(j, "run_id", text), get(j, "batch_id", size), get(j, "driver", text, absent=True)
    spark = get(j, "spark", obj, absent=True)
    if spark is None:
        return
    get(spark, "location", text), get(spark, "offsets", matches("v[0-9]+\n.*", "offsets"))
    for t in get(spark, "before", array):
        text(t)
    lists = get(spark, "lists", obj, absent=True)
    need(lists is None or lists, "lists that are empty")
    for k, t in (lists or {}).items():
        matches("[A-Za-z0-9_]+/[0-9]{1,18}", "source and number")(k), text(t)


def check_clock(v):
    at, source = get(obj(v), "at", time), get(v, "source", text)
    need(source in ("batch", "job"), f"the source {source!r:.80} of the clock")
    return at


def read_manifest(root, data, ref):
    compare(data, ref["digest"])
    o = parse(data)
    version(o)
    upto = sequence(ref["id"])
    need(get(o, "id", ident) == ref["id"], "another id than in the path")
    need(get(o, "sequence", size) == upto, "another sequence than in the id")
    parent = get(o, "parent", or_null(reference))
    need(not parent or sequence(parent["id"]) < upto, "a parent that is not before it")
    get(o, "job", or_null(check_job))
    cost = get(o, "cost", obj, absent=True)
    if cost is not None:
        for f in ("requests", "objects", "bytes", "elapsed_us", "blocked_us"):
            get(cost, f, size)
    out = {
        "epoch": get(o, "epoch", or_null(integer(-MAX - 1))),
        "created": get(o, "created", or_null(time)),
        "positions": get(o, "positions", obj),
        "watermark": get(o, "watermark", anything),
        "properties": get(o, "properties", obj),
        "clock": get(o, "clock", check_clock, absent=True),
        "operators": {},
    }
    for op, v in get(o, "operators", obj).items():
        with about(f"operator {op!r:.200}"):
            out["operators"][name(op)] = read_operator(root, op, v, upto)
    return out
