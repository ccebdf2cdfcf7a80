"""Translate failures of the Files API into errors that say what to do."""

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

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

Asked = Literal["files", "directories", "endpoints", "token"]
"""What a request was about: a part of the API, or a token."""

_UNABLE = (405, 501)

# The service says NOT_FOUND of a file and of the volume alike, and only the message tells which. It must be what the
# sentence is about: the path of a file may have such words in it.
_NO_VOLUME = re.compile(r"(?i)\W*(\w+\]\s*)?(the\s+)?(catalog|schema|volume)\b.*(not exist|not found|not be found)")

_API = "Files API 3.0"


class AnswerError(Exception):
    """The server answered that the request failed."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str], asked: Asked) -> None:
        self.status, self.asked = status, asked
        self.pause = cloud.asked_pause(headers.get("Retry-After"))
        self.message = body.decode("utf-8", "replace")
        self.code: str | None = None
        """The error code of the API; None where the answer is not of the API."""
        try:
            told = json.loads(self.message)
            self.message = str(told.get("message") or told.get("error_description") or told.get("error") or "")
            self.code = str(told.get("error_code") or "") or None
        # Gateways and proxies in between answer in other forms. Their text says enough.
        except (ValueError, AttributeError):
            pass
        super().__init__(f"{status} {self.code or ''}".rstrip() + f": {self.message}")

    @property
    def is_missing_object(self) -> bool:
        """Return whether the API says that there is no such file or directory.

        An answer of anybody else tells nothing about files. It must not make a root look empty.
        """
        of_the_api = self.code is not None and self.code != "ENDPOINT_NOT_FOUND"
        return (
            self.status == 404
            and self.asked in ("files", "directories")
            and of_the_api
            and not _NO_VOLUME.match(self.message)
        )

    @property
    def is_unmet_condition(self) -> bool:
        """Return whether the write of a file was refused because of what is there.

        A directory that exists already says nothing about the file that is to be written in it.
        """
        return self.asked == "files" and (self.status == 412 or (self.status == 409 and self.code == "ALREADY_EXISTS"))

    @property
    def refuses_token(self) -> bool:
        """Return whether the service refused the token, and not its rights."""
        return self.status == 401 or (self.status == 403 and "token" in self.message.lower())


def meaning(error: Exception, name: str, url: str, options: Mapping[str, Any]) -> CheckpointError:
    """Return the error of the tree for a failure.

    `name` says what was asked for, `url` is the root.
    """
    if not isinstance(error, AnswerError):
        said = scrub(f"{type(error).__name__}: {error}", options)
        if isinstance(error, TypeError | ValueError | KeyError | AttributeError):
            return IllegalArgumentError(f"{name}: {said}")
        # Everything else is a broken connection or a timeout: the errors of aiohttp and OSError have no common base.
        return DependencyError(f"{name}: {said}")
    status, said = error.status, scrub(str(error), options)
    if error.is_missing_object:
        return ObjectNotFoundError(f"{name}: not found")
    if status in (429, 503):
        return cloud.with_pause(ThrottlingError(f"{name}: {said}"), error.pause)
    if status in (408, 409, 499) or (status >= 500 and status not in _UNABLE):
        # A gateway in between may say so too, and does not know what became of the request behind it.
        return DependencyError(f"{name}: {said}")
    if error.asked == "token" or error.refuses_token:
        return StoreRefusedError(f"{name}: {said}; correct the credentials in storage_options or the environment")
    if error.asked == "endpoints":
        return StoreRefusedError(
            f"{name}: the workspace does not tell where its {_API} is ({said}); give endpoint_url in storage_options: "
            "https://WORKSPACE_ID.storage.REGION.DOMAIN, with the domain of the workspace"
        )
    if status == 404:
        return _nothing_there(error, url, said)
    if status == 403:
        return StoreRefusedError(
            f"{name}: {said}; correct the credentials in storage_options or the environment, or give them READ VOLUME "
            "and WRITE VOLUME on the volume, USE SCHEMA and USE CATALOG"
        )
    if status in _UNABLE:
        return cloud.unsupported(name, said)
    return StoreRefusedError(f"{name}: {said}")


def _nothing_there(error: AnswerError, url: str, said: str) -> CheckpointError:
    """Return the error for a server without the API, or without the volume."""
    volume = "/".join(url.split("/")[1:5])
    if _NO_VOLUME.match(error.message):
        return StoreNotFoundError(f"{url}: there is no volume /{volume} ({said}); create it, or correct the root")
    return StoreNotFoundError(
        f"{url}: this server has no {_API} ({said}); correct endpoint_url in storage_options, and let an administrator "
        "of the workspace turn on the preview of the Files API 3.0"
    )
