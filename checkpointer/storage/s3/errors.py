"""Translate failures of S3 into errors of the tree, which say what to do."""

from collections.abc import Mapping
from dataclasses import dataclass
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

# Codes of S3 and of servers that speak its protocol, by what they mean to a caller.
_BUSY = {
    "ServiceUnavailable",
    "RequestLimitExceeded",
    "TooManyRequests",
    "Throttling",
    "429",
    "503",
}
_DENIED = {"AccessDenied", "AllAccessDisabled", "AccountProblem", "401", "403"}
_UNKNOWN_USER = {
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
    "XMinioInvalidIAMCredentials",
}
"""Codes for credentials that are wrong, expired or gone."""

# After these the request can be sent again: a damaged body, two conditional writes at once of which S3 decided none, or
# an upload that is gone, since each attempt of a put begins an upload of its own.
_AGAIN = {
    "ConditionalRequestConflict",
    "OperationAborted",
    "RequestTimeout",
    "InternalError",
    "IncompleteBody",
    "BadDigest",
    "XAmzContentSHA256Mismatch",
    "NoSuchUpload",
    "IDPCommunicationError",  # of STS: the identity provider did not answer it
    "409",
}
_ELSEWHERE = {
    "PermanentRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "301",
    "307",
}
_IMPOSSIBLE = {"InvalidBucketName", "KeyTooLongError", "EntityTooLarge", "InvalidURI"}
_UNABLE = {"NotImplemented", "MethodNotAllowed", "501", "405"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """The server's reason for a failed request.

    `error` is set where the server gave no answer.
    """

    code: str
    status: int
    message: str
    error: Exception | None = None
    pause: float | None = None
    """Seconds to wait, if the server said so."""


def refusal(error: Exception | str, message: str = "") -> Refusal:
    """Return why a request failed, as botocore saw it before s3fs translated it."""
    if isinstance(error, str):
        return Refusal(error, 0, message)
    for candidate in (error, error.__cause__):
        response = getattr(candidate, "response", None)
        if isinstance(response, dict):
            said = response.get("Error") or {}
            status = int((response.get("ResponseMetadata") or {}).get("HTTPStatusCode") or 0)
            # An answer without a body, as to HEAD, has the status in place of a code.
            code = {"404": "NoSuchKey", "412": "PreconditionFailed", "416": "InvalidRange"}.get(
                str(said.get("Code") or status), str(said.get("Code") or status)
            )
            headers = (response.get("ResponseMetadata") or {}).get("HTTPHeaders") or {}
            pause = cloud.asked_pause(headers.get("retry-after"))
            return Refusal(code, status, str(said.get("Message") or ""), pause=pause)
    return Refusal("", 0, str(error), error)


def lacks_known_user(why: Refusal) -> bool:
    """Return whether a request failed for wrong, expired or missing credentials."""
    # Imported here, because the package is optional.
    from botocore.exceptions import NoCredentialsError

    return why.code in _UNKNOWN_USER or isinstance(why.error, NoCredentialsError)


def meaning(why: Refusal, name: str, url: str, options: Mapping[str, Any]) -> CheckpointError:
    """Return the error of the tree for a failure.

    `name` says what was asked for, `url` is the root.
    """
    if why.error is not None:
        return _without_answer(why.error, name, scrub(f"{type(why.error).__name__}: {why.message}", options))
    code, said = why.code, scrub(f"{why.code}: {why.message}", options)
    bucket = url.partition("://")[2].partition("/")[0]
    if code == "NoSuchBucket":
        return StoreNotFoundError(f"{url}: there is no bucket {bucket!r}; create it, or correct the root")
    if code in ("NoSuchKey", "NoSuchVersion"):
        return ObjectNotFoundError(f"{name}: not found")
    # A bucket with a key of KMS may say "KMS.ThrottlingException", with status 400.
    if code in _BUSY or code.startswith("SlowDown") or "Throttl" in code or why.status in (429, 503):
        return cloud.with_pause(ThrottlingError(f"{name}: {said}"), why.pause)
    if code in _AGAIN or why.status in (408, 499) or (why.status >= 500 and code not in _UNABLE):
        # A gateway in between may say so too, and does not know what became of the request behind it.
        return DependencyError(f"{name}: {said}")
    return _final(code, name, url, said)


def _final(code: str, name: str, url: str, said: str) -> CheckpointError:
    """Return the error for a code that no further attempt can change."""
    if code == "InvalidObjectState":
        return StoreRefusedError(f"{name}: {said}; it is archived: restore it from the archive first")
    if code in _DENIED:
        return StoreRefusedError(
            f"{name}: {said}; the credentials in use need s3:GetObject, s3:PutObject, s3:DeleteObject, "
            "s3:AbortMultipartUpload, s3:ListBucket and s3:ListBucketMultipartUploads on the root"
        )
    if code in _UNKNOWN_USER:
        return StoreRefusedError(f"{url}: {said}; correct the credentials in storage_options or the environment")
    if code == "RequestTimeTooSkewed":
        return StoreRefusedError(f"{url}: {said}; set the clock of this host")
    if code in _ELSEWHERE:
        return StoreRefusedError(
            f'{url}: {said}; name the region of the bucket in storage_options: client_kwargs={{"region_name": "…"}}'
        )
    if code in _UNABLE:
        return cloud.unsupported(name, said)
    if code in _IMPOSSIBLE:
        return IllegalArgumentError(f"{name}: {said}")
    return StoreRefusedError(f"{name}: {said}")


def _without_answer(error: Exception, name: str, said: str) -> CheckpointError:
    """Return the error for a request that failed before the server answered."""
    # Imported here, because the package is optional.
    from botocore import exceptions as boto

    no_user = (
        boto.NoCredentialsError,
        boto.PartialCredentialsError,
        boto.ProfileNotFound,
        boto.TokenRetrievalError,
        boto.SSOError,
        boto.UnauthorizedSSOTokenError,
    )
    if isinstance(error, no_user):
        return StoreRefusedError(f"{name}: {said}; give credentials in storage_options or the environment")
    if isinstance(error, RecursionError):  # botocore asks for the region at each redirect, with another redirect
        return StoreRefusedError(
            f"{name}: redirected again and again; give the region or the endpoint_url of the bucket"
        )
    if isinstance(error, boto.ParamValidationError | boto.NoRegionError | TypeError | ValueError | KeyError):
        return IllegalArgumentError(f"{name}: {said}")
    # Everything else is a broken connection or a timeout: botocore's errors, aiohttp's and OSError have no common base.
    return DependencyError(f"{name}: {said}")
