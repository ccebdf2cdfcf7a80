"""Decide whether a signature counts for an object.

`manifests/SIGNATURES.md` has the rules, and what each of them prevents.
"""

from collections.abc import Collection
from dataclasses import dataclass

from pyspark_checkpointer.errors import DigestMismatchError, UnsupportedFormatError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.manifest_json import decode_pointer
from pyspark_checkpointer.manifests.signatures_json import ROLES, Header, Role, SignedObject, Signers, decode_signed
from pyspark_checkpointer.storage.signatures.signing_keys import is_signed_by

_COMMIT: tuple[Role, ...] = ("commit",)
_CLEAN: tuple[Role, ...] = ("commit", "clean")
_CONSUME: tuple[Role, ...] = ("consume",)


class NotAllowedError(Exception):
    """A signature does not count. The text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one root.

    They come from the owners, whom the client trusts, and from the list that one of them signed.
    """

    owners: Collection[str]
    signers: Signers

    def check(self, path: str, signed: SignedObject) -> None:
        """Raise `NotAllowedError` unless the signature counts for the object at this path."""
        header = signed.header
        self._check_signer(path, header)
        if not is_signed_by(header.key, signed.signature, signed.message(self.signers.root_id, path)):
            raise NotAllowedError(f"the signature of {self.shown(header.key)} does not fit: its content was changed")
        if (header.at is None) != object_paths.is_manifest(path):
            raise NotAllowedError("it has the signature of another kind of object")
        if header.signers is not None and header.signers > self.signers.version:
            raise NotAllowedError(
                f"was signed under version {header.signers} of the list of signers, and that is version "
                f"{self.signers.version}: an older list was put back"
            )
        if header.commit is not None or not self.may_commit(header.key):
            self._check_commit(path, signed)

    def roles(self, key: str) -> Collection[Role]:
        """Return what a signer may do now; an owner may do everything."""
        if key in self.owners:
            return ROLES
        found = self.signers.signers.get(key)
        return () if found is None or found.through is not None else found.roles

    def may_commit(self, key: str) -> bool:
        """Return whether a signer may commit now."""
        return "commit" in self.roles(key)

    def check_role(self, path: str, key: str) -> None:
        """Raise `NotAllowedError` unless a signer may write this object now."""
        if not set(self.roles(key)) & set(roles_for(path)):
            found = self.signers.signers.get(key)
            if found is None:
                raise NotAllowedError(
                    f"{self.shown(key)} is not in version {self.signers.version} of the list of signers"
                )
            if found.through is not None:
                raise NotAllowedError(f"{self.shown(key)} was revoked")
            raise NotAllowedError(f"{self.shown(key)} may only {' and '.join(found.roles)}")

    def _check_signer(self, path: str, header: Header) -> None:
        found = self.signers.signers.get(header.key)
        if found is not None and found.through is not None and object_paths.is_manifest(path):
            # What a signer committed before it was revoked still counts. Only the chain of digests leads to it, and the
            # catalog of one who may clean: together, a revoked key and that of a cleaner can forge a savepoint.
            owner = object_paths.owner(path)
            if "commit" in found.roles and owner is not None and owner.sequence <= found.through:
                return
        self.check_role(path, header.key)

    def _check_commit(self, path: str, signed: SignedObject) -> None:
        """Check that one who may not commit left alone what is committed.

        Such a signer adds the last version of one who may.
        """
        if path != object_paths.LATEST:
            if signed.header.commit is not None:
                raise NotAllowedError("it has the signature of another kind of object")
            return
        if self.may_commit(signed.header.key):
            raise NotAllowedError("it has the last version of another signer, although its own may commit")
        if signed.header.commit is None:
            raise NotAllowedError("it does not have the last version of one who may commit, as it should")
        last = decode_signed(path, signed.header.commit.encode())
        if last.header.commit is not None or not self.may_commit(last.header.key):
            raise NotAllowedError("the version that it adds is of one who may not commit")
        self.check(path, last)
        assert last.header.at is not None
        assert signed.header.at is not None
        if last.header.at >= signed.header.at:
            raise NotAllowedError("it is older than the version that it adds")
        decode_pointer(last.content)  # what one who may commit wrote in a newer format is no mistake of anybody
        try:
            leaves = leaves_commits(last.content, signed.content)
        # Signed by one who may not commit, and so may not leave it unreadable. A repair may replace it.
        except (DigestMismatchError, UnsupportedFormatError) as error:
            raise NotAllowedError(str(error)) from None
        if not leaves:
            raise NotAllowedError(f"{self.shown(signed.header.key)} may not commit, and changed what is committed")

    def shown(self, key: str) -> str:
        """Return a signer as messages show it."""
        if key in self.owners:
            return f"the owner {key[:16]}…"
        found = self.signers.signers.get(key)
        return key if found is None else f"{found.name!r:.60} ({key[:16]}…)"


def roles_for(path: str) -> Collection[Role]:
    """Return the roles of which a signer needs one to write an object."""
    # A job that follows another one writes among the followers how far it is.
    if path.startswith(object_paths.CONSUMERS) and path != object_paths.FOLLOWERS:
        return _CONSUME
    # Savepoints and retention write catalogs, and swap `_latest`.
    if path == object_paths.LATEST or path.startswith(object_paths.CATALOGS):
        return _CLEAN
    return ROLES if object_paths.owner(path) is None else _COMMIT


def leaves_commits(before: bytes, after: bytes) -> bool:
    """Return whether two versions of `_latest` have the same commits and writer."""
    old, new = decode_pointer(before), decode_pointer(after)
    return (old.committed, old.prepared, old.writer) == (new.committed, new.prepared, new.writer) and (
        old.boundary <= new.boundary
    )


__all__ = ["NotAllowedError", "Rules", "leaves_commits", "roles_for"]
