"""Log in to a workspace of Databricks: with a token, or as a service principal.

The variables of the environment are those of the tools of Databricks.
"""

import asyncio
import base64
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

from pyspark_checkpointer.errors import DependencyError, IllegalArgumentError, StoreRefusedError
from pyspark_checkpointer.storage.databricks.errors import AnswerError
from pyspark_checkpointer.storage.http import document

_EARLY = 60.0
"""Seconds before its end at which a token is replaced."""

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a root, as `storage_options` has them.

    What is missing comes from the environment.
    """

    host: str | None = None
    """The workspace, or DATABRICKS_HOST."""
    endpoint_url: str | None = None
    """The server of the Files API 3.0. Without it, the workspace is asked."""
    token: str | None = field(default=None, repr=False)
    """A personal access token or another bearer token, or DATABRICKS_TOKEN."""
    client_id: str | None = None
    """The service principal, or DATABRICKS_CLIENT_ID."""
    client_secret: str | None = field(default=None, repr=False)
    """Its OAuth secret, or DATABRICKS_CLIENT_SECRET."""


def options_of(given: Mapping[str, Any], url: str) -> Options:
    """Return the options of a root.

    Raises `IllegalArgumentError` for an option that does not exist, or is no text.
    """
    known = [each.name for each in fields(Options)]
    for name, value in given.items():
        if name not in known:
            raise IllegalArgumentError(f"{url}: storage_options: {name!r:.40}: expected {', '.join(known)}")
        if value is not None and not isinstance(value, str):
            raise IllegalArgumentError(f"{url}: storage_options: {name}: expected a text, got {type(value).__name__}")
    return Options(**given)


def address_of(text: str, name: str) -> str:
    """Return the scheme and host of a server, as users write it.

    Raises `IllegalArgumentError` where a token would be sent without TLS to another machine.
    """
    try:
        split = urlsplit(text if "://" in text else f"https://{text}")
        loopback = split.hostname in _LOOPBACK
        valid = bool(split.hostname) and "@" not in split.netloc and (split.port or 1) > 0
    except ValueError:
        valid = loopback = False
    if not valid or (split.scheme != "https" and not (split.scheme == "http" and loopback)):
        # Not quoted: a user and a password may stand in it.
        raise IllegalArgumentError(f"{name}: expected the name of a server, or a URL that begins with https://")
    return f"{split.scheme}://{split.netloc}"


class Login:
    """The token of the caller: one that was given, or one of a service principal.

    It is used on the event loop of the stores only.
    """

    def __init__(self, session: Any, options: Options, url: str, timeout: Any) -> None:
        self._session, self._options, self._url, self._timeout = session, options, url, timeout
        self._turn = asyncio.Lock()
        self._issued: str | None = None
        self._end = 0.0
        self._accepted: str | None = None
        """The token that the service accepted last."""

    @property
    def host(self) -> str | None:
        """Return the address of the workspace; None if nobody told it."""
        host = self._options.host or os.environ.get("DATABRICKS_HOST")
        return address_of(host, "host") if host else None

    async def token(self) -> str:
        """Return a token. Raises `StoreRefusedError` where nothing says who the caller is."""
        given = self._given()
        if given is not None:
            return given
        # One request for a token, however many wait for it.
        async with self._turn:
            if self._issued is None or time.monotonic() >= self._end:
                self._issued, lifetime = await self._ask()
                self._end = time.monotonic() + lifetime - min(_EARLY, lifetime / 2)
            return self._issued

    def accept(self, token: str) -> None:
        """Note that the service has accepted a token."""
        self._accepted = token

    def replace(self, refused: str) -> bool:
        """Return whether there is, or may be, another token than the refused one."""
        given = self._given()
        if given is not None:
            return given != refused  # somebody has replaced the variable
        if self._issued != refused:
            return True  # another request has replaced it
        # A fresh token that is refused will not get better by another one.
        if self._accepted != refused:
            return False
        self._issued = None
        return True

    def _given(self) -> str | None:
        """Return the token that was given; None for a service principal."""
        if self._options.token or self._options.client_id:
            return self._options.token
        # Read each time: it may be replaced while a job runs.
        token = os.environ.get("DATABRICKS_TOKEN")
        if token or os.environ.get("DATABRICKS_CLIENT_ID"):
            return token or None
        raise StoreRefusedError(
            f"{self._url}: no credentials were found; give token, or client_id and client_secret, in storage_options, "
            "or set DATABRICKS_TOKEN, or DATABRICKS_CLIENT_ID and DATABRICKS_CLIENT_SECRET"
        )

    async def _ask(self) -> tuple[str, float]:
        """Return a new token of the service principal, and its lifetime in seconds."""
        name = self._options.client_id or os.environ["DATABRICKS_CLIENT_ID"]
        secret = self._options.client_secret or os.environ.get("DATABRICKS_CLIENT_SECRET")
        if not secret or self.host is None:
            missing = "host, or set DATABRICKS_HOST" if secret else "client_secret, or set DATABRICKS_CLIENT_SECRET"
            raise StoreRefusedError(f"{self._url}: no token of the service principal: give {missing}")
        basic = base64.b64encode(f"{name}:{secret}".encode()).decode()
        async with self._session.post(
            f"{self.host}/oidc/v1/token",
            headers={"Authorization": f"Basic {basic}"},
            data={"grant_type": "client_credentials", "scope": "all-apis"},
            timeout=self._timeout,
            allow_redirects=False,
        ) as answer:
            label = f"{self._url}: the token of the service principal"
            if answer.status != 200:
                raise AnswerError(answer.status, await answer.read(), answer.headers, "token")
            told = await document(answer, label)
        token, lifetime = told.get("access_token"), told.get("expires_in")
        if not isinstance(token, str) or not isinstance(lifetime, int | float):
            raise DependencyError(f"{label}: the answer has no access_token, or no expires_in")
        return token, float(lifetime)
