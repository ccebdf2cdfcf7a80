"""Translate failures of Azure Blob Storage into errors of the tree.

The errors say what to do.
"""

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
from pyspark_checkpointer.storage import cloud
from pyspark_checkpointer.storage.base import ObjectNotFoundError
from pyspark_checkpointer.storage.scrubbing import scrub

_NO_CONTAINER = {"ContainerNotFound", "ContainerDisabled", "ResourceNotFound"}
# The last one comes with status 409 and not 412, so the codes are compared as well as the status.
_CONDITIONS = {"ConditionNotMet", "TargetConditionNotMet", "BlobAlreadyExists"}
_ARCHIVED = {"BlobArchived", "BlobBeingRehydrated"}
_IMPOSSIBLE = {"InvalidResourceName", "InvalidUri", "OutOfRangeInput", "RequestBodyTooLarge"}


REFUSED = (401, 403)
"""Statuses of the blob service for credentials that it does not accept."""

_OUTAGES = ("AADSTS90033", "AADSTS90006", "AADSTS90012", "AADSTS50033", "temporarily_unavailable")
"""Codes of Entra ID for its own outages.

Entra ID may send them with the status of a refusal.
"""


def code_of(error: Exception) -> str:
    """Return the service's error code, or nothing."""
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or "")


def status_of(error: Exception) -> int:
    """Return the HTTP status of the answer, or 0 where there was none."""
    return int(getattr(error, "status_code", None) or 0)


def is_of_identity(error: Exception) -> bool:
    """Return whether the failure is that the identity service gave no token.

    Then nobody asked the blob service. Such an error holds the answer of the identity service: its 404 says nothing
    about a blob.
    """
    from azure.core.exceptions import ClientAuthenticationError

    return isinstance(error, ClientAuthenticationError) and status_of(error) not in REFUSED


def is_missing(error: Exception) -> bool:
    """Return whether the blob is missing; False where the whole container is."""
    return not is_of_identity(error) and status_of(error) == 404 and code_of(error) not in _NO_CONTAINER


def is_past_the_end(error: Exception) -> bool:
    """Return whether the range that was asked for starts after the end of the blob."""
    return not is_of_identity(error) and status_of(error) == 416


def is_refused_condition(error: Exception) -> bool:
    """Return whether the condition of a write did not hold."""
    if is_of_identity(error):
        return False
    # A lease that somebody took on the blob is answered with 412 too, and says nothing about its version.
    return code_of(error) in _CONDITIONS or (status_of(error) == 412 and not code_of(error).startswith("Lease"))


def meaning(error: Exception, name: str, url: str, options: Mapping[str, Any]) -> CheckpointError:
    """Return the error of the tree for a failure.

    `name` says what was asked for, `url` is the root.
    """
    status, code = status_of(error), code_of(error)
    said = scrub(f"{code or type(error).__name__}: {getattr(error, 'message', None) or error}", options)
    if is_of_identity(error):
        return _without_token(error, name, said)
    if not status:
        return _without_answer(error, name, said)
    # A container does not come by itself, while an object that is missing is an answer like others.
    if status == 404 and not is_missing(error):
        return StoreNotFoundError(f"{url}: there is no such container; create it, or correct the root ({said})")
    if status == 404:
        return ObjectNotFoundError(f"{name}: not found")
    if status in (429, 503):
        headers = getattr(getattr(error, "response", None), "headers", None) or {}
        return cloud.with_pause(ThrottlingError(f"{name}: {said}"), cloud.asked_pause(headers.get("Retry-After")))
    if status == 412 and not code.startswith("Lease"):
        # The SDK asks for the further ranges of a blob on condition that its ETag is that of the first one.
        return DependencyError(f"{name}: was changed while it was read")
    if (
        status in (408, 499)
        or (status >= 500 and status != 501)
        or code in ("ContainerBeingDeleted", "OperationTimedOut")
    ):
        # A gateway in between may say so too, and does not know what became of the request behind it.
        return DependencyError(f"{name}: {said}")
    if status in REFUSED or code == "PublicAccessNotPermitted":
        return StoreRefusedError(
            f"{name}: {said}; correct the credentials in storage_options or the environment, or give them the role "
            "Storage Blob Data Contributor on the container"
        )
    if code in _ARCHIVED:
        return StoreRefusedError(f"{name}: {said}; it is archived: rehydrate it first")
    if code in _IMPOSSIBLE:
        return IllegalArgumentError(f"{name}: {said}")
    return StoreRefusedError(f"{name}: {said}")


def _without_answer(error: Exception, name: str, said: str) -> CheckpointError:
    """Return the error for a request that failed before the service answered."""
    if isinstance(error, TypeError | ValueError | KeyError | AttributeError):
        return IllegalArgumentError(f"{name}: {said}")
    return DependencyError(f"{name}: {said}")


def _without_token(error: Exception, name: str, said: str) -> CheckpointError:
    """Return the error for a missing token.

    It is final if the identity service refused, and retryable otherwise.
    """
    status, whole = status_of(error), str(error)
    unsigned = type(error).__module__.startswith("azure.storage")  # the key is malformed: nobody was asked
    # A chain of credentials fails with one error without a status, which quotes what each of them was told.
    refused = status in (400, 405, 406) or (not status and "AADSTS" in whole)
    if unsigned or (refused and not any(outage in whole for outage in _OUTAGES)):
        return StoreRefusedError(f"{name}: {said}; correct the credentials in storage_options or the environment")
    kind = ThrottlingError if status in (429, 503) else DependencyError
    return kind(f"{name}: no token: {said}; if it happens again, check the identity of this process")
