"""Define the JSON of new commits: copy, rollback, fork, rewind; and a new key."""

from typing import Annotated, Literal, TypedDict

from pyspark_checkpointer.cli.schemas.values import Id


class Commit(TypedDict):
    """A checkpoint that was committed with the content of another."""

    id: Id
    root: str
    content_of: Id


class Fork(TypedDict):
    """A second query, and its first checkpoint."""

    id: Id
    root: str
    content_of: Id
    spark_checkpoint: Annotated[str, "its checkpointLocation"]
    query_id: str
    batch: Annotated[int, "the one that it ends with"]


class Rewind(TypedDict):
    """The changes of a rewind, made or planned."""

    query_id: str
    left: Annotated[Id, "what was committed before"]
    left_batch: int
    to: Annotated[Id, "whose content is the state now"]
    batch: Annotated[int, "Spark goes on with the next one"]
    spark_checkpoint: Annotated[str, "the query's checkpointLocation"]
    cut: Annotated[list[str], "files that were taken out of it"]
    written: Annotated[list[str], "files that were put there"]
    kept_in: Annotated[str | None, "the folder of it that has what was cut"]
    savepoint: Annotated[str | None, "the name that keeps what was left"]
    changes: Annotated[bool, "whether anything was to be changed"]
    new: Annotated[Id | None, "the new commit; null where nothing was done"]
    refused: Annotated[str | None, "why the same call without --dry-run would be refused now; null where it would not"]


class EncryptedRoot(TypedDict):
    """A root that was encrypted where it is."""

    root: str
    objects: Annotated[int, "how many were copied"]
    bytes: Annotated[int, "of what was copied, before encryption"]
    deleted: Annotated[int, "how many originals were deleted"]


class Signer(TypedDict):
    """One whose signatures count in a signed root."""

    name: str
    key: Annotated[str, "the public key"]
    roles: Annotated[list[str], "commit, clean, consume"]
    through: Annotated[int | None, "the last sequence that counts, where the signer was revoked; else null"]


class SignerList(TypedDict):
    """The list of signers of a signed root."""

    root: str
    root_id: Annotated[str, "the random id of the root, for `root:` in `--signing`"]
    version: int
    signers: list[Signer]


class RootKey(TypedDict):
    """A key that opens an encrypted root."""

    provider: Annotated[str, "its kind, such as `key-file`"]
    key: Annotated[str, "its name; empty for a passphrase"]
    opens: Annotated[Literal["all", "structure"], "`structure` for the key of a cleaner, which opens no artifact"]


class RootKeys(TypedDict):
    """The keys that open an encrypted root."""

    root: str
    keys: list[RootKey]


class Rekeyed(TypedDict):
    """An encrypted root that another key opens now."""

    root: str
    objects: Annotated[int | None, "how many were encrypted anew; null without --rewrite, as those that follow"]
    bytes: Annotated[int | None, "of what was encrypted anew, before encryption"]
    deleted: Annotated[int | None, "how many originals were deleted"]
