"""Make clients of Azure Blob Storage: adlfs without caches, shared instances."""

import os
import urllib.request
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.storage import cloud
from pyspark_checkpointer.storage.connection import import_package, take_finalizers_off
from pyspark_checkpointer.storage.url import Location

_ACCOUNT_OPTIONS = ("account_name", "connection_string")
"""Options that can name the account; one of them is required.

Each may also be set in the environment, as AZURE_STORAGE_….
"""

# Nothing in a user's options may bring back caches, shared instances or requests that read old versions.
_FORCED = {
    "asynchronous": False,
    "skip_instance_cache": True,
    "use_listings_cache": False,
    "version_aware": False,
    # The default of adlfs is an eighth of the limit of open files, and each of them holds a part in memory.
    "max_concurrency": cloud.PARALLEL_PARTS,
}


def account_of(location: Location) -> dict[str, Any]:
    """Return the options of adlfs for the account in a URL.

    The URL names it as `container@account.dfs.core.windows.net`.
    """
    host = location.account_host
    if host is None:
        return {}
    account = {"account_name": host.partition(".")[0]}
    if not host.endswith(".core.windows.net"):
        # The URLs of Spark name the endpoint for file systems; adlfs speaks to the one for blobs.
        account["account_host"] = host.replace(".dfs.", ".blob.", 1)
    return account


_KEPT_CLIENTS = 128
"""The SDK's clients of blobs that are kept, at most.

Each takes 33 KB. To make one takes a seventh of the time of an update.
"""


def environment() -> dict[str, str]:
    """Return the variables that adlfs takes options from."""
    return {name: value for name, value in os.environ.items() if name.startswith("AZURE_STORAGE_")}


class AzureClient:
    """A file system of adlfs, and the SDK's clients of the blobs that it swaps."""

    def __init__(self, files: Any) -> None:
        self.files, self.service = files, files.service_client
        self.environment = environment()
        """The credentials in the environment when it was opened: adlfs reads them once."""
        self.kept_blob = lru_cache(_KEPT_CLIENTS)(self.service.get_blob_client)
        """Return the client of a blob that is written again and again."""


async def open_client(url: str, options: Mapping[str, Any]) -> AzureClient:
    """Return a client with a file system of adlfs.

    Raises `IllegalArgumentError` where nothing names the account.
    """
    if not any(options.get(name) or os.environ.get(f"AZURE_STORAGE_{name.upper()}") for name in _ACCOUNT_OPTIONS):
        raise IllegalArgumentError(
            f"{url}: no account; write abfs://container@account.dfs.core.windows.net/… or give account_name "
            "or connection_string in storage_options"
        )
    adlfs = await import_package("adlfs")
    files = adlfs.AzureBlobFileSystem(**{**options, **_FORCED})
    take_finalizers_off(files)
    _spare_netrc(files.service_client)
    return AzureClient(files)


def _spare_netrc(service: Any) -> None:
    """Keep aiohttp from reading ~/.netrc before each request.

    aiohttp reads it in a thread, which takes time. The service takes no password from this file. If another version of
    the SDK makes this function useless, only this time is lost again.
    """
    transport: Any = getattr(getattr(service, "_pipeline", None), "_transport", None)
    # One switch stands for this file and for the proxies of the environment.
    if hasattr(transport, "_use_env_settings") and not urllib.request.getproxies():
        transport._use_env_settings = False


async def close_client(client: AzureClient) -> None:
    """Close the connections of a client from `open_client`."""
    files = client.files
    await client.service.close()
    if files.sync_credential is not None:  # adlfs made these two itself, and closes neither
        await files.credential.close()
        files.sync_credential.close()
