"""Send requests to the Files API 3.0 of Databricks, in one attempt each.

The package of Databricks is not used: its calls repeat requests, and take no conditions.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from pyspark_checkpointer.errors import DependencyError, StoreRefusedError
from pyspark_checkpointer.storage import cloud, http
from pyspark_checkpointer.storage.connection import import_package
from pyspark_checkpointer.storage.databricks.errors import AnswerError, Asked
from pyspark_checkpointer.storage.databricks.login import Login, address_of, options_of

_ENDPOINTS = "/api/2.0/fs/endpoints"
"""Where a workspace tells the servers of its volumes. The package of Databricks asks there; no manual has it."""


class VolumesClient:
    """The requests to the volumes of a workspace."""

    def __init__(self, session: Any, login: Login, limits: Any) -> None:
        self._session, self._login, self._limits = session, login, limits
        self.endpoint = ""
        """The address of the server of the Files API 3.0."""

    @asynccontextmanager
    async def ask(
        self,
        method: str,
        asked: Asked,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> AsyncIterator[Any]:
        """Send a request about a file or a directory, and yield the answer.

        `path` begins with the folder of all volumes, without a slash before it.
        """
        url = f"{self.endpoint}/api/3.0/fs/{asked}/{quote(path)}"
        if query:
            url += f"?{urlencode(query)}"
        async with self._send(method, asked, url, headers or {}, body) as answer:
            yield answer

    async def find_endpoint(self, host: str, label: str) -> str:
        """Ask the workspace at `host` for the server of its Files API 3.0.

        Raises `StoreRefusedError` where it names none.
        """
        async with self._send("GET", "endpoints", f"{host}{_ENDPOINTS}", {}, None) as answer:
            told = (await http.document(answer, label)).get("endpoints", [])
        for entry in told if isinstance(told, list) else []:
            if isinstance(entry, dict) and (entry.get("api"), entry.get("api_version")) == ("FILES_API", "3.0"):
                # Only a name: the token goes where it leads.
                server = f"{entry.get('scheme')}://{entry.get('hostname')}"
                if urlsplit(server).netloc == entry.get("hostname"):
                    return address_of(server, "the endpoint that the workspace names")
        raise AnswerError(404, b"it names no server of FILES_API 3.0", {}, "endpoints")

    async def close(self) -> None:
        await self._session.close()

    @asynccontextmanager
    async def _send(
        self, method: str, asked: Asked, url: str, headers: Mapping[str, str], body: Any
    ) -> AsyncIterator[Any]:
        """Send a request and yield the answer.

        Raises `AnswerError` where the answer tells of a failure.
        """
        token = await self._login.token()
        login = {"Authorization": f"Bearer {token}"}
        async with http.send(self._session, method, url, {**login, **headers}, body, self._limits) as answer:
            if answer.status < 300:
                self._login.accept(token)
                yield answer
                return
            error = AnswerError(answer.status, await answer.read(), answer.headers, asked)
        if error.refuses_token and self._login.replace(token):
            # The request was refused, and did nothing. Whoever sent it sends it again.
            raise DependencyError(f"{url.partition('?')[0]}: {error.status}: the token is replaced")
        raise error


async def open_client(url: str, given: Mapping[str, Any], concurrency: int, timeout: float) -> VolumesClient:
    """Return a client of the volumes of a workspace; `given` are the user's options.

    Raises `StoreRefusedError` where no credentials were found, or no server.
    """
    options = options_of(given, url)
    aiohttp = await import_package("aiohttp")
    limits = http.time_limits(aiohttp, timeout)
    # Not a proxy of the environment: the same switch makes aiohttp send passwords of ~/.netrc in place of the token.
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=cloud.connections(concurrency)))
    http.never_repeat(session)
    try:
        login = Login(session, options, url, limits)
        client = VolumesClient(session, login, limits)
        client.endpoint = await _endpoint(client, login, options.endpoint_url, url)
    except BaseException:
        await session.close()
        raise
    return client


async def _endpoint(client: VolumesClient, login: Login, given: str | None, url: str) -> str:
    if given:
        return address_of(given, "endpoint_url")
    if login.host is None:
        raise StoreRefusedError(f"{url}: no workspace: give host in storage_options, or set DATABRICKS_HOST")
    return await client.find_endpoint(login.host, url)


async def close_client(client: VolumesClient) -> None:
    """Close the connections of a client from `open_client`."""
    await client.close()
