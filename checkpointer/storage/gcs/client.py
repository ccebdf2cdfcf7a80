"""Send requests to Google Cloud Storage, in one attempt each.

Credentials and session are those of gcsfs. The calls of gcsfs repeat a request, and drop what the server said of a
failure. So requests go through its session, and not through its calls.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlencode

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import DependencyError, StoreRefusedError
from pyspark_checkpointer.storage import cloud, http
from pyspark_checkpointer.storage.connection import import_package, take_finalizers_off
from pyspark_checkpointer.storage.gcs.errors import AnswerError

# Nothing in a user's options may bring back caches, shared instances or requests that read old versions.
_FORCED = {
    "asynchronous": False,
    "skip_instance_cache": True,
    "use_listings_cache": False,
    "version_aware": False,
}

GOES_ON = 308
"""Status of the answer to all chunks of an upload but the last one."""


class GCSClient:
    """The requests to one bucket."""

    def __init__(self, files: Any, session: Any, bucket: str, limits: Any) -> None:
        self._files, self._session, self._limits = files, session, limits
        self._bucket = f"/storage/v1/b/{quote(bucket, safe='')}"
        self._objects = f"{self._bucket}/o"
        self._renewed: Mapping[str, str] | None = None
        """The headers with a token that was renewed, until the service has accepted it."""

    @asynccontextmanager
    async def ask(
        self, method: str, key: str, query: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Any]:
        """Send a request about an object, and yield the answer.

        If `key` is empty, the request is about all objects.
        """
        path = f"{self._objects}/{quote(key, safe='')}" if key else self._objects
        async with self._send(method, path, query, headers or {}, None, about_object=bool(key)) as answer:
            yield answer

    @asynccontextmanager
    async def ask_bucket(self) -> AsyncIterator[Any]:
        """Send a request for the settings of the bucket, and yield the answer."""
        async with self._send("GET", self._bucket, {}, {}, None) as answer:
            yield answer

    @asynccontextmanager
    async def upload(
        self, body: Any, query: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Any]:
        """Send an object, or begin an upload in chunks, and yield the answer."""
        # POST is the method that no client of HTTP repeats by itself.
        async with self._send("POST", f"/upload{self._objects}", query, headers or {}, body) as answer:
            yield answer

    @asynccontextmanager
    async def continue_upload(
        self, method: str, upload: str, body: Any, headers: Mapping[str, str]
    ) -> AsyncIterator[Any]:
        """Send a chunk of an upload, or end the upload, and yield the answer.

        `upload` is the address that the server gave. It is a credential in itself, and needs no other.
        """
        async with self._request(method, upload, headers, body, chunk=True) as answer:
            yield answer

    async def close(self) -> None:
        await self._session.close()

    @asynccontextmanager
    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: Any,
        *,
        about_object: bool = False,
    ) -> AsyncIterator[Any]:
        server = self._files.base.removesuffix("/storage/v1/")
        url = f"{server}{path}?{urlencode(self._files._get_params(query), quote_via=quote)}"
        login = await self._login()
        try:
            async with self._request(method, url, {**login, **headers}, body, about_object=about_object) as answer:
                if login == self._renewed:
                    self._renewed = None
                yield answer
        except AnswerError as error:
            if error.status != 401 or not await self._renew(login):
                raise
            # The request was refused, and did nothing. Whoever sent it sends it again.
            raise DependencyError(f"{url.partition('?')[0]}: 401: the token was renewed") from None

    async def _renew(self, refused: Mapping[str, str]) -> bool:
        """Return whether there is another token than the refused one.

        A token may end before its time.
        """
        credentials = self._files.credentials.credentials
        # A token that was refused although it is fresh will not get better by another one.
        if credentials is None or refused == self._renewed:
            return False
        if await self._login() != refused:
            return True  # somebody else has renewed it
        kept, credentials.token = credentials.token, None
        try:
            self._renewed = await self._login()
        except Exception:  # of many kinds: there is nothing to renew it with, or the identity service refuses
            credentials.token = kept
            return False
        return self._renewed != refused

    async def _login(self) -> dict[str, str]:
        """Return the headers that name the caller."""
        headers: dict[str, str] = {}
        if self._files.credentials.credentials is not None:
            # It asks for a new token now and then. On the loop, all other requests would wait for that too.
            await runtime.in_thread(self._files.credentials.apply, headers)
        return headers

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Any,
        *,
        about_object: bool = False,
        chunk: bool = False,
    ) -> AsyncIterator[Any]:
        """Send a request and yield the answer.

        Raises `AnswerError` where the answer tells of a failure.
        """
        async with http.send(self._session, method, url, headers, body, self._limits) as answer:
            # An upload goes on with 308. Any other answer of that kind leads elsewhere.
            if answer.status >= 300 and not (answer.status == GOES_ON and chunk):
                retry_after = answer.headers.get("Retry-After")
                raise AnswerError(answer.status, await answer.read(), about_object, retry_after)
            yield answer


async def open_client(url: str, bucket: str, given: Mapping[str, Any], concurrency: int, timeout: float) -> GCSClient:
    """Return a client of a bucket; `given` are the user's options.

    Raises `StoreRefusedError` where no credentials were found, and `DependencyError` if there should be some: where
    the identity service had an outage, the next attempt may find them.
    """
    gcsfs = await import_package("gcsfs")
    aiohttp = await import_package("aiohttp")
    options = {**given, **_FORCED}
    # As the libraries of Google do: an emulator asks for no credentials. Looking for some takes seconds.
    if os.environ.get("STORAGE_EMULATOR_HOST") and not {"token", "endpoint_url"} & options.keys():
        options |= {"token": "anon"}
    # It may ask the identity service for a token.
    files = await runtime.in_thread(gcsfs.core.GCSFileSystem, **options)
    if files.credentials.credentials is None and options.get("token") is None:
        # gcsfs goes on without credentials where it finds none, also while the identity service has an outage.
        compute_engine = await import_package("google.auth.compute_engine")
        failure = DependencyError if _has_metadata_server(compute_engine) else StoreRefusedError
        raise failure(
            f"{url}: no credentials were found; give token in storage_options, or set GOOGLE_APPLICATION_CREDENTIALS; "
            "token='anon' asks without credentials"
        )
    # A client certificate of gcsfs comes with a connector of its own.
    if "connector" not in files.session_kwargs and not getattr(files, "_use_client_cert", False):
        connector = aiohttp.TCPConnector(limit=cloud.connections(concurrency))
        files.session_kwargs = {**files.session_kwargs, "connector": connector}
    session = await files._set_session()
    http.never_repeat(session)
    take_finalizers_off(files)
    return GCSClient(files, session, bucket, http.time_limits(aiohttp, timeout))


def _has_metadata_server(compute_engine: Any) -> bool:
    """Return whether this machine should have a metadata server for tokens.

    That is so on Google's own machines, and where a variable names a server.
    """
    if os.environ.get("NO_GCE_CHECK") == "true":  # gcsfs does not ask one then
        return False
    named = any(os.environ.get(f"GCE_METADATA_{part}") for part in ("HOST", "ROOT", "IP"))
    return named or bool(compute_engine.detect_gce_residency_linux())


async def close_client(client: GCSClient) -> None:
    """Close the connections of a client from `open_client`."""
    await client.close()
