"""Encode and decode a catalog as JSON.

The catalog holds the checkpoints that are kept besides the recent history.
"""

from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.json_fields import Fields
from pyspark_checkpointer.manifests.json_text import dump, format_time
from pyspark_checkpointer.manifests.model import FORMAT_VERSION, Catalog, CatalogEntry, Json


def encode_catalog(catalog: Catalog) -> bytes:
    """Return the bytes of a catalog."""
    return dump(
        {
            "format_version": FORMAT_VERSION,
            "id": str(catalog.id),
            "entries": [
                {
                    "id": str(entry.ref.id),
                    "digest": entry.ref.digest,
                    "name": entry.name,
                    "created": format_time(entry.created),
                    "nonce": entry.nonce,
                }
                for entry in catalog.entries
            ],
            **catalog.extra,
        }
    )


def decode_catalog(path: str, data: bytes) -> Catalog:
    """Return the catalog at `path`.

    The caller has compared its bytes with the digest in the path.
    """
    fields = Fields.parse_compact(path, data)
    catalog = Catalog(
        id=fields.id("id"),
        entries=tuple(_decode_entry(path, value) for value in fields.items("entries")),
        extra=fields.rest,
    )
    # Each catalog is written under an id drawn for it, so another id means that the bytes of another catalog lie here.
    if catalog.id != object_paths.owner(path):
        fields.fail(f"expected the id in its path, found {catalog.id}")
    names = [entry.name for entry in catalog.entries if entry.name is not None]
    # A name is all that a user gives to restore a savepoint, so it must not have two meanings.
    if len(set(names)) != len(names):
        fields.fail("two savepoints have the same name")
    refs = {entry.ref for entry in catalog.entries}
    if len({ref.id for ref in refs}) < len(refs):
        fields.fail("one checkpoint has two digests")
    # An entry without a name keeps a checkpoint for retention. A second one could outlive the first unseen.
    if len(catalog.entries) - len(names) > len({entry.ref for entry in catalog.entries if entry.name is None}):
        fields.fail("one checkpoint has two entries without a name")
    if catalog.id in {ref.id for ref in refs}:
        fields.fail(f"a checkpoint has the id of the catalog, {catalog.id}")
    # Where nothing is kept apart, `_latest` names no catalog at all.
    if not catalog.entries:
        fields.fail("expected at least one entry")
    return catalog


def _decode_entry(path: str, value: Json) -> CatalogEntry:
    fields = Fields(f"{path}: entry", value)
    ref = fields.ref()
    name = fields.take("name")
    try:
        if name is not None:
            object_paths.encode_name("savepoint", name)
    except IllegalArgumentError as error:
        fields.fail(str(error))
    return CatalogEntry(ref=ref, name=name, created=fields.time("created"), nonce=fields.filled_text("nonce"))
