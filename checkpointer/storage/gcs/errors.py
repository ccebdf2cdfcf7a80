"""Translate failures of Google Cloud Storage into errors that say what to do."""

import json
from collections.abc import Iterator, Mapping
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

_BUSY = {"rateLimitExceeded", "userRateLimitExceeded"}
"""Reasons that come with the status of a refusal, and mean that the service asked for less."""

_NO_BUCKET = "bucket does not exist"
"""Words of the answer for an object of a bucket that does not exist."""

_UNABLE = (405, 501)


class AnswerError(Exception):
    """The server answered that the request failed."""

    def __init__(self, status: int, body: bytes, about_object: bool, retry_after: str | None = None) -> None:
        self.status = status
        self.pause = cloud.asked_pause(retry_after)
        self.message = body.decode("utf-8", "replace")
        self.reason = ""
        try:
            told = json.loads(self.message)["error"]
            self.message = str(told.get("message") or "")
            self.reason = str(told["errors"][0]["reason"])
        # Downloads, and proxies in between, answer in other forms. Their text says enough.
        except (ValueError, LookupError, TypeError, AttributeError):
            pass
        self.is_missing_object = status == 404 and about_object and _NO_BUCKET not in self.message
        super().__init__(f"{status} {self.reason}".rstrip() + f": {self.message}")


def status_of(error: Exception) -> int:
    """Return the HTTP status of the answer, or 0 where there was none."""
    return error.status if isinstance(error, AnswerError) else 0


def meaning(error: Exception, name: str, url: str, options: Mapping[str, Any]) -> CheckpointError:
    """Return the error of the tree for a failure.

    `name` says what was asked for, `url` is the root.
    """
    if not isinstance(error, AnswerError):
        return _without_answer(error, name, scrub(f"{type(error).__name__}: {error}", options))
    status, said = error.status, scrub(str(error), options)
    if error.is_missing_object:
        return ObjectNotFoundError(f"{name}: not found")
    if status == 404:
        bucket = url.partition("://")[2].partition("/")[0]
        return StoreNotFoundError(f"{url}: there is no bucket {bucket!r}; create it, or correct the root")
    if status in (429, 503) or error.reason in _BUSY:
        return cloud.with_pause(ThrottlingError(f"{name}: {said}"), error.pause)
    if status in (408, 409, 499) or (status >= 500 and status not in _UNABLE):
        # A gateway in between may say so too, and does not know what became of the request behind it.
        return DependencyError(f"{name}: {said}")
    if status == 401:
        return StoreRefusedError(f"{name}: {said}; correct the credentials in storage_options or the environment")
    if status == 403:
        return StoreRefusedError(
            f"{name}: {said}; correct the credentials in storage_options or the environment, or give them the role "
            "Storage Object User on the bucket"
        )
    if status in _UNABLE:
        return cloud.unsupported(name, said)
    return StoreRefusedError(f"{name}: {said}")


def _without_answer(error: Exception, name: str, said: str) -> CheckpointError:
    """Return the error for a request that failed before the service answered."""
    # Imported here, because the package is optional.
    from google.auth.exceptions import GoogleAuthError, TransportError

    causes = [*_causes(error)]
    refused = [cause for cause in causes if isinstance(cause, GoogleAuthError)]
    if any(isinstance(cause, TransportError) or cause.retryable for cause in refused):
        return DependencyError(f"{name}: no token: {said}; if it happens again, check the identity of this process")
    if refused:
        return StoreRefusedError(f"{name}: {said}; correct the credentials in storage_options or the environment")
    if isinstance(error, TypeError | ValueError | KeyError | AttributeError):
        return IllegalArgumentError(f"{name}: {said}")
    # Everything else is a broken connection or a timeout: the errors of aiohttp and OSError have no common base.
    return DependencyError(f"{name}: {said}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and the errors that it was raised from.

    gcsfs wraps the errors of the identity service.
    """
    while error is not None:
        yield error
        error = error.__cause__
