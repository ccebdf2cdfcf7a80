"""Make clients of S3: s3fs without caches, shared instances and retries."""

from collections.abc import Mapping
from typing import Any

from pyspark_checkpointer.errors import StoreRefusedError
from pyspark_checkpointer.storage import cloud
from pyspark_checkpointer.storage.connection import import_package, take_finalizers_off

# Nothing in a user's options may bring back caches, shared instances or requests that read old versions.
_FORCED = {
    # An asynchronous instance breaks on its second event loop. Its coroutines are run on fsspec's loop in any case.
    "asynchronous": False,
    "skip_instance_cache": True,
    "use_listings_cache": False,
    "version_aware": False,
}

_loaders: dict[str | None, Any] = {}
"""botocore's descriptions of S3, parsed once.

The key is the folder that they were read from.
"""


async def open_client(url: str, given: Mapping[str, Any], concurrency: int, timeout: float) -> Any:
    """Return a file system of s3fs whose requests are one attempt each.

    `given` are the user's options. Raises `StoreRefusedError` where the installed botocore cannot write under
    conditions.
    """
    s3fs = await import_package("s3fs")
    options = {k: v for k, v in given.items() if k not in _FORCED}
    config = dict(options.pop("config_kwargs", None) or {})
    pool = max(cloud.connections(concurrency), config.get("max_pool_connections", 0))
    # The user's own timeouts come later and win. Retries, below, stay off: a swap must be sent once.
    config = {"connect_timeout": min(timeout, 10.0), "read_timeout": timeout, **config}
    # One attempt: "standard" counts the first request among the attempts, "legacy" would not.
    config |= {"retries": {"mode": "standard", "total_max_attempts": 1}, "max_pool_connections": pool}
    files = s3fs.S3FileSystem(**options, config_kwargs=config, **_FORCED)
    # s3fs repeats requests by itself too, and would not tell that the first one may have taken effect.
    files.retries = 1
    files.session = _session(await import_package("aiobotocore.session"), files.kwargs)
    client = await files.set_session()
    take_finalizers_off(files)
    known = client.meta.service_model.operation_model("PutObject").input_shape.members
    if not {"IfMatch", "IfNoneMatch"} <= known.keys():
        # s3fs drops what botocore does not know: a swap would silently overwrite anything.
        raise StoreRefusedError(f"{url}: this botocore has no conditional writes; upgrade it")
    return files


async def close_client(files: Any) -> None:
    """Close the connections of a file system from `open_client`."""
    await files._s3creator.__aexit__(None, None, None)


async def has_new_credentials(files: Any) -> bool:
    """Return whether the process would now find other credentials.

    They are compared with those that a file system uses. Somebody may have replaced a file, a variable or a role.
    botocore reads credentials once, unless they say when they expire.
    """
    # Credentials from the user's options do not change.
    if files.anon or files.key is not None or "aws_access_key_id" in files.client_kwargs:
        return False
    used = getattr(getattr(files.s3, "_request_signer", None), "_credentials", None)
    found = await _session(await import_package("aiobotocore.session"), files.kwargs).get_credentials()
    # botocore makes a client without credentials where it finds none, also while the service of roles has an outage.
    if used is None or found is None:
        return found is not None
    return bool(await found.get_frozen_credentials() != await used.get_frozen_credentials())


def _session(package: Any, arguments: Mapping[str, Any]) -> Any:
    """Return the session that s3fs would make, with descriptions parsed only once.

    These are the descriptions of S3. Parsing takes four fifths of the time to open a root, and each task opens one.
    """
    session = package.AioSession(**arguments)
    where = session.get_config_variable("data_path")
    if where not in _loaders:
        _loaders[where] = session.get_component("data_loader")
    session.register_component("data_loader", _loaders[where])
    return session
