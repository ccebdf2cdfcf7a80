"""The pointer, and the catalog that it names."""

import re

from tests.judge.reader.checks import array, digest, get, ident, integer, need, obj, or_null, sequence, some, text, time
from tests.judge.reader.objects import CATALOG, compare, name, parse, version


def reference(v):
    return {"id": get(obj(v), "id", ident), "digest": get(v, "digest", digest)}


def catalog_reference(v):
    m = CATALOG.fullmatch(get(obj(v), "path", text))
    need(m and get(v, "digest", digest) == m[2], f"{v!r:.200} is no path and digest of a catalog")
    return {"path": v["path"], "id": m[1], "digest": m[2]}


def read_pointer(data):
    need(len(data) <= 1 << 20, "more than 1 MiB")
    o = obj(parse(data))
    version(o)  # Restore 2: version, digest, fields
    before, mark, after = data.rpartition(b',"digest":"')
    need(mark and re.fullmatch(b'[0-9a-f]{64}"}', after), "the digest is not at the end")
    compare(before, after[:64].decode())
    need(get(o, "digest", digest) == after[:64].decode(), "another digest")
    writer = get(o, "writer", obj)
    get(writer, "epoch", integer(1)), get(writer, "instance", some), get(o, "nonce", some)
    committed, prepared = get(o, "committed", or_null(reference)), get(o, "prepared", or_null(reference))
    last = sequence(committed["id"]) if committed else 0
    need(not prepared or sequence(prepared["id"]) == last + 1, "the prepared sequence is not the next one")
    boundary = get(o, "boundary", integer(1, max(last, 1)))
    catalog = get(o, "catalog", or_null(catalog_reference))
    need(
        not catalog or catalog["id"] not in {r["id"] for r in (committed, prepared) if r},
        "a checkpoint has the id of the catalog",
    )
    for r in get(o, "retired", array):
        get(obj(r), "boundary", integer(1, boundary))
        get(r, "catalog", or_null(catalog_reference)), get(r, "at", time)
    return {
        "committed": committed,
        "prepared": prepared,
        "boundary": boundary,
        "catalog": catalog,
    }


def read_catalog(data, ref):
    compare(data, ref["digest"])
    o = parse(data)
    version(o)
    need(get(o, "id", ident) == ref["id"], "another id than in the path")
    savepoints, digests, bare = {}, {}, set()
    for e in get(o, "entries", array):
        r = reference(e)
        created, n = get(e, "created", time), get(e, "name", or_null(name))
        get(e, "nonce", some)
        need(digests.setdefault(r["id"], r["digest"]) == r["digest"], f"{r['id']} with two digests")
        if n is None:
            need(r["id"] not in bare, f"{r['id']} twice without a name")
            bare.add(r["id"])
        else:
            need(n not in savepoints, f"{n!r} twice")
            savepoints[n] = r | {"created": created}
    need(digests, "no entries")
    need(ref["id"] not in digests, "a checkpoint has the id of the catalog")
    return savepoints
