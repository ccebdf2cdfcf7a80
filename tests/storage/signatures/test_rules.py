"""Whose signature counts for what: each rule of manifests/SIGNATURES.md alone, without a store."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pyspark_checkpointer.errors import UntrustedError
from pyspark_checkpointer.manifests.manifest_json import encode_pointer
from pyspark_checkpointer.manifests.model import Pointer, Writer
from pyspark_checkpointer.manifests.signatures_json import (
    Header,
    Role,
    Signer,
    Signers,
    decode_signed,
    encode_header,
    encode_signed,
    signed_message,
)
from pyspark_checkpointer.storage.base import Blob
from pyspark_checkpointer.storage.signatures import versions
from pyspark_checkpointer.storage.signatures.freshness import Newest
from pyspark_checkpointer.storage.signatures.rules import NotAllowedError, Rules
from tests.manifests.samples import POINTER

ROOT = "0" * 32
URL = "memory://rules"
LATEST = "_latest"
MANIFEST = "manifests/0000000042-1a2b3c4d.json"
POSITION = "progress/kinesis/app/ownership.json"
AT = datetime(2026, 1, 2, tzinfo=UTC)
LATER = AT + timedelta(seconds=1)
PRIVATE = {
    name: Ed25519PrivateKey.from_private_bytes(name.encode().ljust(32))
    for name in ("owner", "driver", "cleaner", "host", "old", "gone", "stranger")
}
CONTENT = encode_pointer(POINTER)


def public(name: str) -> str:
    return PRIVATE[name].public_key().public_bytes_raw().hex()


def signer(name: str, *roles: Role, through: int | None = None) -> Signer:
    return Signer(name, public(name), roles, through)


LISTED = (
    signer("driver", "commit"),
    signer("cleaner", "clean"),
    signer("host", "consume"),
    signer("old", "commit", through=42),
    signer("gone", "clean", through=42),
)
RULES = Rules((public("owner"),), Signers(ROOT, 3, MappingProxyType({one.key: one for one in LISTED})))


def sign(
    name: str,
    path: str,
    content: bytes = CONTENT,
    at: datetime | None = AT,
    commit: bytes | None = None,
    signers: int | None = 3,
    private: str | None = None,
) -> bytes:
    """Return an object that `name` signed, or that says so and was signed by `private`."""
    text = None if commit is None else commit.decode()
    line = encode_header(Header(public(name), at, None if at is None else signers, text))
    signature = PRIVATE[private or name].sign(signed_message(ROOT, path, line, content))
    return encode_signed(line, signature, content)


def check(path: str, data: bytes) -> None:
    RULES.check(path, decode_signed(path, data))


def other(**changes: object) -> bytes:
    return encode_pointer(replace(POINTER, nonce="another", **changes))  # type: ignore[arg-type]


BY_DRIVER = sign("driver", LATEST)


@pytest.mark.parametrize(
    ("path", "data"),
    [
        *((path, sign(name, path, at=None)) for path in (MANIFEST,) for name in ("owner", "driver", "old")),
        *((LATEST, sign(name, LATEST)) for name in ("owner", "driver")),
        (LATEST, sign("driver", LATEST, signers=2)),
        (LATEST, sign("cleaner", LATEST, other(), LATER, BY_DRIVER)),
        (LATEST, sign("cleaner", LATEST, other(boundary=POINTER.boundary + 1, catalog=None), LATER, BY_DRIVER)),
        *((POSITION, sign(name, POSITION)) for name in ("owner", "host")),
        *(("progress/followers.json", sign(name, "progress/followers.json")) for name in ("driver", "cleaner", "host")),
    ],
)
def test_what_counts(path: str, data: bytes) -> None:
    check(path, data)


NEXT = "manifests/0000000043-1a2b3c4d.json"

REFUSED = {
    "a stranger": (LATEST, sign("stranger", LATEST), "is not in version 3 of the list"),
    "another's key": (LATEST, sign("driver", LATEST, private="stranger"), "does not fit"),
    "another path": (NEXT, sign("driver", MANIFEST, at=None), "does not fit"),
    "another root": (MANIFEST, sign("driver", f"\n{MANIFEST}", at=None), "does not fit"),
    "a manifest of a cleaner": (MANIFEST, sign("cleaner", MANIFEST, at=None), "may only clean"),
    "a manifest of a host": (MANIFEST, sign("host", MANIFEST, at=None), "may only consume"),
    "a position of a driver": (POSITION, sign("driver", POSITION), "may only commit"),
    "a pointer of a host": (LATEST, sign("host", LATEST, commit=BY_DRIVER), "may only consume"),
    "a later manifest of one who was revoked": (NEXT, sign("old", NEXT, at=None), "was revoked"),
    "a manifest of a cleaner who was revoked": (MANIFEST, sign("gone", MANIFEST, at=None), "was revoked"),
    "a pointer of one who was revoked": (LATEST, sign("old", LATEST), "was revoked"),
    "a newer list": (LATEST, sign("driver", LATEST, signers=4), "an older list was put back"),
    "a manifest that looks like a pointer": (MANIFEST, sign("driver", MANIFEST), "another kind of object"),
    "a pointer that looks like a manifest": (LATEST, sign("driver", LATEST, at=None), "another kind of object"),
    "a position with a commit": (POSITION, sign("host", POSITION, commit=BY_DRIVER), "another kind of object"),
    "a driver with a commit": (LATEST, sign("driver", LATEST, other(), LATER, BY_DRIVER), "although its own may"),
    "a cleaner without a commit": (LATEST, sign("cleaner", LATEST), "as it should"),
    "a cleaner with its own commit": (
        LATEST,
        sign("cleaner", LATEST, other(), LATER, sign("cleaner", LATEST)),
        "of one who may not commit",
    ),
    "a cleaner with a commit of one who was revoked": (
        LATEST,
        sign("cleaner", LATEST, other(), LATER, sign("old", LATEST)),
        "of one who may not commit",
    ),
    "a cleaner with a forged commit": (
        LATEST,
        sign("cleaner", LATEST, other(), LATER, sign("driver", LATEST, private="cleaner")),
        "does not fit",
    ),
    "a cleaner with a later commit": (LATEST, sign("cleaner", LATEST, other(), AT, BY_DRIVER), "is older"),
    "a cleaner with a commit within a commit": (
        LATEST,
        sign("cleaner", LATEST, other(), LATER + timedelta(1), sign("cleaner", LATEST, other(), LATER, BY_DRIVER)),
        "of one who may not commit",
    ),
    "a cleaner who prepares": (
        LATEST,
        sign("cleaner", LATEST, other(prepared=None if POINTER.prepared else POINTER.committed), LATER, BY_DRIVER),
        "may not commit, and changed what is committed|does not follow",
    ),
    "a cleaner who takes over": (
        LATEST,
        sign("cleaner", LATEST, other(writer=Writer(POINTER.writer.epoch + 1, "x")), LATER, BY_DRIVER),
        "may not commit, and changed what is committed",
    ),
    "a cleaner who brings back history": (
        LATEST,
        sign("cleaner", LATEST, other(boundary=POINTER.boundary - 1), LATER, BY_DRIVER),
        "may not commit, and changed what is committed",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_count(what: str) -> None:
    path, data, why = REFUSED[what]
    with pytest.raises(Exception, match=why) as caught:
        check(path, data)
    assert isinstance(caught.value, NotAllowedError) or "does not follow" in str(caught.value)


def test_a_cleaner_brings_back_no_older_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own version is newer than all others, but the commit in it is an old one."""
    monkeypatch.setattr(versions, "TIMES", Newest())
    newer = sign("driver", LATEST, other(), LATER)
    stale = sign("cleaner", LATEST, other(), LATER + timedelta(seconds=9), BY_DRIVER)

    def read(data: bytes) -> None:
        versions.open_object(URL, LATEST, Blob(data, "v"), RULES, versions.seen_before(URL, LATEST))

    read(stale)
    read(sign("cleaner", LATEST, other(), LATER + timedelta(seconds=10), newer))
    for older in (stale, sign("cleaner", LATEST, other(), LATER + timedelta(seconds=11), BY_DRIVER), newer):
        with pytest.raises(UntrustedError, match="an older version was put back"):
            read(older)


def test_a_version_is_later_than_all_that_were_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of another signer was ahead."""
    monkeypatch.setattr(versions, "TIMES", Newest())
    assert abs(versions.next_time(URL, RULES, LATEST) - datetime.now(UTC)) < timedelta(minutes=5)
    future = datetime.now(UTC) + timedelta(hours=3)
    data = sign("driver", LATEST, at=future)
    versions.open_object(URL, LATEST, Blob(data, "v"), RULES, versions.seen_before(URL, LATEST))
    assert versions.next_time(URL, RULES, LATEST) == future + timedelta(microseconds=1)
    far = sign("driver", LATEST, at=datetime.now(UTC) + timedelta(days=2))
    with pytest.raises(UntrustedError, match="more than a day ahead of the clock of this machine"):
        versions.open_object(URL, LATEST, Blob(far, "v"), RULES, {})
    # Another root at the same URL has a history of its own.
    anew = replace(RULES, signers=replace(RULES.signers, root_id="1" * 32))
    assert versions.next_time(URL, anew, LATEST) < future


def test_a_read_that_began_before_a_newer_version_was_seen_is_no_rollback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "TIMES", Newest())
    before = versions.seen_before(URL, LATEST)
    newer = Blob(sign("driver", LATEST, other(), LATER), "2")
    versions.open_object(URL, LATEST, newer, RULES, versions.seen_before(URL, LATEST))
    versions.open_object(URL, LATEST, Blob(BY_DRIVER, "1"), RULES, before)
    with pytest.raises(UntrustedError, match="an older version was put back"):
        versions.open_object(URL, LATEST, Blob(BY_DRIVER, "1"), RULES, versions.seen_before(URL, LATEST))


def test_the_pointer_of_the_samples_can_be_changed_by_these_tests() -> None:
    assert isinstance(POINTER, Pointer)
    assert POINTER.boundary > 1
    assert POINTER.catalog is not None


def test_what_is_made_anew_by_a_slower_clock_is_refused_by_who_saw_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is a documented limit. To forget an old version once it is missing would let it be put back unnoticed."""
    ahead, here = datetime.now(UTC) + timedelta(minutes=5), Newest[datetime]()
    monkeypatch.setattr(versions, "TIMES", here)
    old = Blob(sign("host", POSITION, at=ahead), "1")
    versions.open_object(URL, POSITION, old, RULES, versions.seen_before(URL, POSITION))
    monkeypatch.setattr(versions, "TIMES", Newest())  # in another process, after it was deleted
    anew = Blob(sign("host", POSITION, at=versions.next_time(URL, RULES, POSITION)), "2")
    monkeypatch.setattr(versions, "TIMES", here)
    with pytest.raises(UntrustedError, match="an older version was put back"):
        versions.open_object(URL, POSITION, anew, RULES, versions.seen_before(URL, POSITION))
    monkeypatch.setattr(versions, "TIMES", Newest())  # started again
    versions.open_object(URL, POSITION, anew, RULES, versions.seen_before(URL, POSITION))
