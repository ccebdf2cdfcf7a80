"""Read the settings of a container of Azure that matter to a root."""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from pyspark_checkpointer.storage.base import BucketRule


async def read_rules(service: Any, container: Any, limits: Mapping[str, Any]) -> Sequence[BucketRule]:
    """Return the settings of an account and a container that their clients tell.

    `limits` go with each request. Rules by age belong to the account, and another service tells them.
    """
    policy = await _ask(container.get_container_properties(**limits))
    account = await _ask(service.get_service_properties(**limits))
    return (_immutability(policy), _soft_delete(account))


async def _ask(request: Awaitable[Any]) -> Any:
    """Return a setting, or a text that says why it is not known."""
    from azure.core.exceptions import HttpResponseError

    try:
        return await request
    except HttpResponseError as error:
        return f"not known ({getattr(error, 'error_code', None) or error.status_code})"


def _immutability(found: Any) -> BucketRule:
    if isinstance(found, str):
        return BucketRule("immutability", found)
    names = [
        name
        for name, key in (("a policy", "has_immutability_policy"), ("a legal hold", "has_legal_hold"))
        if found.get(key)
    ]
    if not names:
        return BucketRule("immutability", "none")
    advice = "use a container without it: `_latest` is replaced at every commit, and cleanup deletes"
    return BucketRule("immutability", " and ".join(names), advice, True)


def _soft_delete(found: Any) -> BucketRule:
    if isinstance(found, str):
        return BucketRule("soft delete", found)
    kept = found.get("delete_retention_policy")
    if kept is None or not kept.enabled:
        return BucketRule("soft delete", "off")
    advice = "a few days are enough: what cleanup deletes is paid for until then" if (kept.days or 0) > 7 else None
    return BucketRule("soft delete", f"keeps what was deleted for {kept.days} days", advice)
