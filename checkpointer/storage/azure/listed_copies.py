"""Copy positions into the metadata of their blobs, which a listing tells.

A consumer that begins reads the position of each partition. With these copies one listing tells all of them. Without
the copies each would take a request. A swap writes a blob and its metadata in one request, and any other write of the
blob drops the metadata. So a copy always has the version of its blob. Positions of writers that write no copies are
read as before.
"""

import base64
import hashlib
from typing import Any

from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.storage.base import Blob

NAME = "position"
"""The name of the field of the metadata."""

MAX_COPY = 4 << 10
"""Bytes of an object that is copied, at most. The service takes 8 KiB of metadata."""


def metadata_of(path: str, data: bytes) -> dict[str, str]:
    """Return the metadata to write with an object.

    It is empty unless the object is a small position.
    """
    name = object_paths.parse_position_path(path) if len(data) <= MAX_COPY else None
    # In base64, because metadata are headers, which hold no more than ASCII.
    return {NAME: base64.b64encode(data).decode()} if name is not None and name.kind == "position" else {}


def listed_blob(found: Any, at: float | None) -> Blob | None:
    """Return an object that a listing told; None where it has to be read.

    `found` is the SDK's description of a blob, and `at` is when the server began to answer.
    """
    copy, digest = (found.metadata or {}).get(NAME), found.content_settings.content_md5
    if copy is None or digest is None or found.size > MAX_COPY:
        return None
    try:
        data = base64.b64decode(copy, validate=True)
    except ValueError:  # somebody else's metadata
        return None
    # The service's own digest tells that it is a copy of what the blob holds now.
    if len(data) != found.size or hashlib.md5(data, usedforsecurity=False).digest() != bytes(digest):
        return None
    # Headers put the ETag in quotes, and listings do not. A swap needs it as it stands in a header.
    return Blob(data, found.etag if found.etag.startswith('"') else f'"{found.etag}"', at)
