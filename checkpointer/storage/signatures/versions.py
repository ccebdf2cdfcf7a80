"""Open a version of a signed object: check its signature, then its age.

A version is older than another by the time in its signature. Each signer makes it later than all that it saw.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark_checkpointer.errors import InvalidStateError, MalformedError, UntrustedError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.json_text import format_time
from pyspark_checkpointer.manifests.signatures_json import (
    Header,
    SignedObject,
    decode_signed,
    encode_header,
    encode_signed,
    signed_message,
    stored_path,
)
from pyspark_checkpointer.storage.base import Blob, Signed
from pyspark_checkpointer.storage.signatures.freshness import Newest
from pyspark_checkpointer.storage.signatures.rules import NotAllowedError, Rules, leaves_commits
from pyspark_checkpointer.storage.signatures.signing_keys import SigningKey, sign

COMMITS = f"{object_paths.LATEST} commits"
"""The name under which the time of the last `_latest` of one who may commit is remembered."""

TIMES: Newest[datetime] = Newest()
"""The newest time of each object."""

MAX_AHEAD = timedelta(days=1)
"""The longest time by which a version may be ahead of the reader's clock.

Without it one signer could leave no time for later versions.
"""

Seen = dict[str, Mapping[str, datetime]]
"""The newest versions that were seen before a request, by object and root."""


@dataclass(frozen=True, slots=True)
class SignedVersion:
    """A version of an object that is replaced, and who signed it."""

    version: str
    """The store's name of it."""
    header: Header
    last_commit: str | None
    """The last `_latest` of one who may commit, as it was stored; None for any other object."""
    commit: Signed
    """Who signed the last commit, and when."""


def seen_before(url: str, path: str) -> Seen:
    """Return the newest versions that are known of an object, before a request for it."""
    names = (path, COMMITS) if path == object_paths.LATEST else (path,)
    return {name: TIMES.seen((url, name)) for name in names}


def all_seen_before(url: str, prefix: str) -> Seen:
    """Return the newest known versions of all objects below a prefix.

    Asked before they are listed.

    Another client of this process may have seen a newer one than the client that lists.
    """
    return dict(TIMES.below(url, prefix))


def open_object(url: str, path: str, blob: Blob, rules: Rules, seen: Seen) -> tuple[bytes, SignedVersion | None]:
    """Return the content of an object, and its version if it is replaced.

    Raises `UntrustedError` where its signature does not count, or an older version was put back.
    """
    name = stored_path(path)
    try:
        signed = decode_signed(name, blob.data)
        rules.check(path, signed)
        if signed.header.at is None:
            return signed.content, None
        if signed.header.at > datetime.now(UTC) + MAX_AHEAD:
            raise NotAllowedError(
                f"was signed at {format_time(signed.header.at)}, more than a day ahead of the clock of this machine"
            )
        for each, at in _times(path, signed).items():
            before = seen.get(each, {}).get(rules.signers.root_id)
            if before is not None and at < before:
                raise NotAllowedError(
                    f"was signed at {format_time(at)}, and this process has seen the version of "
                    f"{format_time(before)}: an older version was put back"
                )
        return signed.content, see(url, path, blob.version, signed, rules)
    except (MalformedError, NotAllowedError) as error:
        why = str(error).removeprefix(f"{name}: ")
        advice = (
            "The root is being signed: if that was interrupted, call `checkpointer signers` again"
            if rules.signers.adopting
            else "Nothing of it counts: bring back the right object from a copy, or ask the owner of the root who may "
            "sign it"
        )
        untrusted = UntrustedError(f"{url}/{name}: {why}. {advice}")
        untrusted.version = blob.version
        raise untrusted from None


def see(url: str, path: str, version: str, signed: SignedObject, rules: Rules) -> SignedVersion:
    """Remember a version that is there now, and return it."""
    for name, at in _times(path, signed).items():
        TIMES.see((url, name), rules.signers.root_id, at)
    last = _last_commit(signed) if path == object_paths.LATEST else None
    commit = signed.header if last is None else decode_signed(path, last.encode()).header
    assert commit.at is not None
    return SignedVersion(version, signed.header, last, Signed(commit.at, rules.shown(commit.key)))


def next_time(url: str, rules: Rules, path: str) -> datetime:
    """Return the time of a new version: now, or later where a clock was ahead."""
    now, seen = datetime.now(UTC), TIMES.seen((url, path)).get(rules.signers.root_id)
    if seen is None:
        return now
    return max(now, seen + timedelta(microseconds=1))


def _times(path: str, signed: SignedObject) -> dict[str, datetime]:
    """Return the time of a version, of `_latest` also that of its last commit."""
    assert signed.header.at is not None
    times = {path: signed.header.at}
    if path == object_paths.LATEST:
        last = decode_signed(path, _last_commit(signed).encode()).header.at
        assert last is not None
        times[COMMITS] = last
    return times


def _last_commit(signed: SignedObject) -> str:
    return signed.header.commit or encode_signed(signed.line, signed.signature, signed.content).decode()


def sign_object(rules: Rules, key: SigningKey, header: Header, path: str, content: bytes) -> bytes:
    """Return an object as it is stored, signed."""
    line = encode_header(header)
    return encode_signed(line, sign(key, signed_message(rules.signers.root_id, path, line, content)), content)


def left_commit(url: str, key: SigningKey, rules: Rules, data: bytes, before: SignedVersion | None) -> str:
    """Return the last `_latest` of one who may commit.

    One who may not adds it to a new one.

    Raises `InvalidStateError` where the new one does not leave its commits alone.
    """
    last = None if before is None else before.last_commit
    if last is None or not leaves_commits(decode_signed(object_paths.LATEST, last.encode()).content, data):
        raise InvalidStateError(
            f"{url}: nothing was written: {rules.shown(key.public_key)} may not commit: use a key that may, or ask the "
            "owner of the root"
        )
    return last


__all__ = [
    "Seen",
    "SignedVersion",
    "all_seen_before",
    "left_commit",
    "next_time",
    "open_object",
    "see",
    "seen_before",
    "sign_object",
]
