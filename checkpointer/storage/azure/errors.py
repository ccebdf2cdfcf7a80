"""What the failures of Azure Blob Storage mean: which becomes which error of the tree, and what to do about
it."""

from collections.abc import Mapping
from typing import Any

from pyspark_checkpointer.errors import (
    CheckpointError,
    DependencyError,
    IllegalArgumentError,
    StoreNotFoundError,
    StoreRefusedError,
    ThrottlingError,
)
from pyspark_checkpointer.storage.base import ObjectNotFoundError
from pyspark_checkpointer.storage.scrubbing import scrub

_NO_CONTAINER = {"ContainerNotFound", "ContainerDisabled", "ResourceNotFound"}
_CONDITIONS = {"ConditionNotMet", "TargetConditionNotMet", "BlobAlreadyExists"}
_IMPOSSIBLE = {"InvalidResourceName", "InvalidUri", "OutOfRangeInput", "RequestBodyTooLarge"}


_REFUSED = (401, 403)
"""What the service of the blobs answers to credentials that it does not take."""

_PASSING = ("AADSTS90033", "AADSTS90006", "AADSTS90012", "AADSTS50033", "temporarily_unavailable")
"""What Entra ID says of troubles of its own, also where the status is one of a refusal."""


def code_of(error: Exception) -> str:
    """Return the service's error code, or nothing."""
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or "")


def status_of(error: Exception) -> int:
    return int(getattr(error, "status_code", None) or 0)


def is_of_identity(error: Exception) -> bool:
    """Return whether no token was to be had, so that the service of the blobs was never asked.

    The identity service's own answer is in such an error: its 404 says nothing of a blob.
    """
    from azure.core.exceptions import ClientAuthenticationError

    return isinstance(error, ClientAuthenticationError) and status_of(error) not in _REFUSED


def is_missing(error: Exception) -> bool:
    """Return whether the blob is not there; of a missing container, this is false."""
    return not is_of_identity(error) and status_of(error) == 404 and code_of(error) not in _NO_CONTAINER


def is_past_the_end(error: Exception) -> bool:
    return not is_of_identity(error) and status_of(error) == 416


def is_refused_condition(error: Exception) -> bool:
    if is_of_identity(error):
        return False
    return code_of(error) in _CONDITIONS or (status_of(error) == 412 and not code_of(error).startswith("Lease"))


def meaning(error: Exception, name: str, url: str, options: Mapping[str, Any]) -> CheckpointError:
    """Return the error of the tree; `name` says what was asked for, `url` is the root."""
    status, code = status_of(error), code_of(error)
    said = scrub(f"{code or type(error).__name__}: {getattr(error, 'message', None) or error}", options)
    if is_of_identity(error):
        return _without_token(error, name, said)
    if not status:
        return _without_answer(error, name, said)
    if status == 404 and not is_missing(error):
        return StoreNotFoundError(f"{url}: there is no such container; create it, or correct the root ({said})")
    if status == 404:
        return ObjectNotFoundError(f"{name}: not found")
    if status in (429, 503):
        return ThrottlingError(f"{name}: {said}")
    if status == 412 and not code.startswith("Lease"):
        return DependencyError(f"{name}: was changed while it was read")
    if (
        status in (408, 499)
        or (status >= 500 and status != 501)
        or code in ("ContainerBeingDeleted", "OperationTimedOut")
    ):
        # Also from a gateway in between, which does not know what became of the request behind it.
        return DependencyError(f"{name}: {said}")
    if status in _REFUSED or code == "PublicAccessNotPermitted":
        return StoreRefusedError(
            f"{name}: {said}; correct the credentials in storage_options or the environment, or give them the role "
            "Storage Blob Data Contributor on the container"
        )
    if code in _IMPOSSIBLE:
        return IllegalArgumentError(f"{name}: {said}")
    return StoreRefusedError(f"{name}: {said}")


def _without_answer(error: Exception, name: str, said: str) -> CheckpointError:
    if isinstance(error, TypeError | ValueError | KeyError | AttributeError):
        return IllegalArgumentError(f"{name}: {said}")
    return DependencyError(f"{name}: {said}")


def _without_token(error: Exception, name: str, said: str) -> CheckpointError:
    """Tell an identity service that refuses from one that is away: no answer, an error of its own, or not there yet."""
    status, whole = status_of(error), str(error)
    unsigned = type(error).__module__.startswith("azure.storage")  # a key that is none: nobody was asked
    refused = status in (400, 405, 406) or (not status and "AADSTS" in whole)
    if unsigned or (refused and not any(passing in whole for passing in _PASSING)):
        return StoreRefusedError(f"{name}: {said}; correct the credentials in storage_options or the environment")
    kind = ThrottlingError if status in (429, 503) else DependencyError
    return kind(f"{name}: no token: {said}; if this goes on, look at the identity that this process runs with")
