"""Parse a root's URL, and refuse bad ones before anything is opened."""

import os
import re
import sys
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import fsspec

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.storage.registry import STORES, Reach, StoreKind, store_kind_of, volumes_of

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?=/)")

_EXAMPLE = "s3://bucket/path"

_OWN = {protocol for kind in STORES for protocol in kind.protocols}
# The last two are old protocols of Azure, which fsspec does not know. They are here only to recognise a URL without its
# slashes, which may hold a password.
_PROTOCOLS = {*_OWN, *fsspec.available_protocols(), "wasb", "wasbs"}

# Only what the names of buckets and containers consist of. Anything else in their place may be a part of a key, and is
# never shown.
_BUCKET = re.compile(r"[A-Za-z0-9._$-]*|arn:.*")
_CONTAINER = re.compile(r"[A-Za-z0-9$-]*")
_HOST = re.compile(r"([^:]*|\[.*\])(:[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Location:
    """A root, as its URL names it."""

    protocol: str
    """In lower case."""
    host: str
    """The bucket or container; empty for a local folder, and for a root in a volume."""
    path: str
    """The path without slashes around it; of a local folder, the absolute path. It names the volume, if there is one.
    """
    account_host: str | None = None
    """The host of the account, where the URL names one."""

    @property
    def kind(self) -> StoreKind:
        """Return the kind of store that the root is on."""
        return store_kind_of(self.protocol)

    @property
    def url(self) -> str:
        """Return the URL in its normal form, which `parse` takes again."""
        if self.kind.reach is Reach.MACHINE:
            return self.path
        if self.kind.volume:
            return f"{self.protocol}:/{self.path}"
        host = f"{self.host}@{self.account_host}" if self.account_host else self.host
        return f"{self.protocol}://{host}/{self.path}" if self.path else f"{self.protocol}://{host}"


def parse(url: str | os.PathLike[str]) -> Location:
    """Return the location that `url` names.

    Raises `IllegalArgumentError` for what cannot be a root; its message never repeats a password.
    """
    if not isinstance(url, str | os.PathLike):
        raise IllegalArgumentError(f"the root: expected a folder or a URL such as {_EXAMPLE}, got {type(url).__name__}")
    text = os.fspath(url)
    if isinstance(text, str) and "\0" in text:
        raise IllegalArgumentError(f"the root {text!r:.60}: holds a NUL character, which no path may")
    if not isinstance(text, str) or not text.strip():
        raise IllegalArgumentError(f"the root is empty: give a folder or a URL such as {_EXAMPLE}")
    match = _SCHEME.match(text)
    if match is None:
        if "://" in text:
            raise IllegalArgumentError(f"{text.partition(':')[0]!r:.40}: not the protocol of a URL")
        # "s3:bucket" is a valid name of a folder, but hardly meant as one.
        prefix, colon, _ = text.partition(":")
        if colon and prefix.lower() in _PROTOCOLS:
            raise IllegalArgumentError(
                f"{prefix}:…: a URL has two slashes, as {_EXAMPLE}; for a folder of this name write ./{prefix}:…"
            )
        return _local(text)
    scheme = match["scheme"].lower()
    kind = store_kind_of(scheme)
    if kind.reach is Reach.MACHINE:
        return _file_url(text, scheme)
    return _in_volume(kind, scheme, text) if kind.volume else _remote(scheme, text)


def absolute(url: str | os.PathLike[str]) -> str:
    """Return a root's URL in a form that does not depend on the process.

    It does not depend on the current directory either. Keep or send this form of a location. Raises as `parse` does.
    """
    return parse(url).url


def above(url: str) -> str | None:
    """Return the URL of the folder that a root lies in.

    Return None for a whole bucket, container or volume: above it there is nothing to look at.
    """
    location = parse(url)
    parts = location.path.split("/") if location.path else []
    if len(parts) <= (location.kind.volume or "").count("/"):
        return None
    return replace(location, path="/".join(parts[:-1])).url


def _local(path: str) -> Location:
    try:
        folder = os.path.abspath(os.path.expanduser(path))
    except FileNotFoundError:
        raise IllegalArgumentError(
            f"{path}: a relative folder, but the current one was removed; give an absolute one"
        ) from None
    _refuse_mounted_volume(folder)
    return Location("file", "", folder)


def _refuse_mounted_volume(folder: str) -> None:
    """Raise `IllegalArgumentError` for a folder in a mounted volume.

    A mount has no conditional writes, and a lock there holds on one machine. The store of the volume has conditions.
    """
    if sys.platform == "darwin":
        return  # this system mounts all of its disks at /Volumes
    for kind in [kind for kind in STORES if kind.volume]:
        # The older mount of all files, which has the name of the protocol, has the volumes in it too.
        inside = folder.removeprefix(f"/{kind.protocols[0]}")
        if f"{inside}/".startswith(volumes_of(kind)):
            raise IllegalArgumentError(
                f"{folder}: is a mount, on which writes cannot be made conditional; give the URL of this folder, "
                f"{kind.protocols[0]}:{inside}"
            )


def _file_url(text: str, scheme: str) -> Location:
    rest = text[len(scheme) + 1 :]
    # Without two slashes, as in file:/path, all of the rest is the path.
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost", "~") or not slash:
            raise IllegalArgumentError(f"{scheme}://…: names a host; write {scheme}:///absolute/path")
        return _local(f"~/{path}" if host == "~" else f"/{path}")
    return _local(rest)


def _refuse_line_ends(scheme: str, text: str) -> None:
    """Refuse a URL with characters that `urlsplit` leaves out.

    It would be that of another root.
    """
    if any(character in text for character in "\t\r\n"):
        # Without the text, which may hold a password.
        raise IllegalArgumentError(f"{scheme}://…: has a tab or the end of a line in it: leave it out")


def _in_volume(kind: StoreKind, scheme: str, text: str) -> Location:
    """Return the location of a URL that names a volume in place of a bucket."""
    assert kind.volume is not None
    _refuse_line_ends(scheme, text)
    rest = text[len(scheme) + 1 :]
    # Three slashes are an empty host, which means the same as none.
    path = rest[2:] if rest.startswith("///") else rest
    # What is there in place of a volume may be a password, and is not shown.
    if not f"{path}/".startswith(volumes_of(kind)):
        raise IllegalArgumentError(f"{scheme}:…: names no volume; expected {scheme}:{kind.volume}/path")
    if "?" in path or "#" in path:
        shown = re.split("[?#]", path)[0]
        raise IllegalArgumentError(f"{scheme}:{shown}: a root has no query and no fragment")
    parts = path.strip("/").split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise IllegalArgumentError(f"{scheme}:{path}: a root has no empty, '.' or '..' parts in its path")
    if len(parts) < kind.volume.count("/"):
        raise IllegalArgumentError(f"{scheme}:{path}: names no volume; expected {scheme}:{kind.volume}/path")
    return Location(scheme, "", "/".join(parts))


def _remote(scheme: str, text: str) -> Location:
    """Return the location of a URL with a host or bucket.

    Credentials in the URL are refused, and never shown.
    """
    kind = store_kind_of(scheme)
    in_cloud = kind.reach is Reach.CLOUD
    _refuse_line_ends(scheme, text)
    try:
        split = urlsplit(text)
    except ValueError:  # brackets around no IPv6 address, or characters that look like others
        raise IllegalArgumentError(f"{scheme}://…: not a URL") from None
    user, at, host = split.netloc.rpartition("@")
    # A key before an @ may hold slashes, and then its beginning looks like the name of a bucket.
    clean = (_BUCKET if in_cloud else _HOST).fullmatch(host) is not None
    shown = f"{scheme}://{host}{split.path}" if clean and host else f"{scheme}://…"
    # Where a slash is missing, or there is one too many, all of the text is a path, and may hold a password.
    hidden = not split.netloc and "@" in text
    if hidden:
        shown = f"{scheme}://…"
    if not clean or hidden or not _CONTAINER.fullmatch(user) or (at and not kind.has_accounts):
        raise IllegalArgumentError(
            f"{shown}: a URL must not hold credentials; pass them in storage_options or in the environment"
        )
    if split.query or split.fragment:
        raise IllegalArgumentError(f"{shown}: a root has no query and no fragment; pass options in storage_options")
    # Before an @ stands the container and behind it the account, so with an @ both are needed.
    if (not (user if at else host) and in_cloud) or (at and not host):
        raise IllegalArgumentError(f"{shown}: names no {'account' if user else 'bucket or container'}")
    path = split.path.strip("/")
    # No path at all means the whole bucket. Dots would lead out of the root.
    if any(part in ("", ".", "..") for part in path.split("/")) and path:
        raise IllegalArgumentError(f"{shown}: a root has no empty, '.' or '..' parts in its path")
    if at:
        return Location(scheme, user, path, host)
    return Location(scheme, host, path)
