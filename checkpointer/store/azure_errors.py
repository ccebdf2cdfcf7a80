"""What the failures of Azure Blob Storage mean: which becomes which error of the tree, and what to do about
it."""

from collections.abc import Mapping
from typing import Any

from checkpointer.errors import (
    CheckpointError,
    DependencyError,
    IllegalArgumentError,
    StoreNotFoundError,
    StoreRefusedError,
    ThrottlingError,
)
from checkpointer.store.base import ObjectNotFoundError
from checkpointer.store.scrub import scrub

_NO_CONTAINER = {"ContainerNotFound", "ContainerDisabled", "ResourceNotFound"}
_CONDITIONS = {"ConditionNotMet", "TargetConditionNotMet", "BlobAlreadyExists"}
_IMPOSSIBLE = {"InvalidResourceName", "InvalidUri", "OutOfRangeInput", "RequestBodyTooLarge"}


def code_of(error: Exception) -> str:
    """The service's error code, or nothing."""
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or "")


def status_of(error: Exception) -> int:
    return int(getattr(error, "status_code", None) or 0)


def is_missing(error: Exception) -> bool:
    """Whether the blob is not there; of a missing container, this is false."""
    return status_of(error) == 404 and code_of(error) not in _NO_CONTAINER


def is_past_the_end(error: Exception) -> bool:
    return status_of(error) == 416


def is_refused_condition(error: Exception) -> bool:
    return code_of(error) in _CONDITIONS or (status_of(error) == 412 and not code_of(error).startswith("Lease"))


def meaning(error: Exception, name: str, url: str, options: Mapping[str, Any]) -> CheckpointError:
    """The error of the tree; `name` says what was asked for, `url` is the root."""
    status, code = status_of(error), code_of(error)
    said = scrub(f"{code or type(error).__name__}: {getattr(error, 'message', None) or error}", options)
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
    if status in (401, 403) or code == "PublicAccessNotPermitted":
        return StoreRefusedError(
            f"{name}: {said}; correct the credentials in storage_options or the environment, or give them the role "
            "Storage Blob Data Contributor on the container"
        )
    if code in _IMPOSSIBLE:
        return IllegalArgumentError(f"{name}: {said}")
    return StoreRefusedError(f"{name}: {said}")


def _without_answer(error: Exception, name: str, said: str) -> CheckpointError:
    from azure.core import exceptions as azure

    if isinstance(error, azure.ClientAuthenticationError):
        return StoreRefusedError(f"{name}: {said}; correct the credentials in storage_options or the environment")
    if isinstance(error, TypeError | ValueError | KeyError | AttributeError):
        return IllegalArgumentError(f"{name}: {said}")
    return DependencyError(f"{name}: {said}")
