"""Read the settings of a bucket of S3 that matter to a root."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from pyspark_checkpointer.storage.base import BucketRule
from pyspark_checkpointer.storage.s3.errors import refusal

Call = Callable[[str], Awaitable[Mapping[str, Any]]]
"""Function that sends a request about the bucket, by the name of its method."""

_NOT_SET = {
    "NoSuchLifecycleConfiguration",
    "ObjectLockConfigurationNotFoundError",
    "ServerSideEncryptionConfigurationNotFoundError",
}
"""Codes for a setting that nobody has made."""

_EXPIRE_VERSIONS = "add a rule that expires noncurrent versions after some days, or cleanup frees nothing"


_ARCHIVES = {"GLACIER", "DEEP_ARCHIVE"}
"""The storage classes of objects that have to be restored before they can be read."""


async def read_rules(call: Call, root: str) -> Sequence[BucketRule]:
    """Return the settings of the bucket. `root` is the prefix of the root."""
    lifecycle = await _ask(call, "get_bucket_lifecycle_configuration")
    rules = [] if isinstance(lifecycle, str) else [rule for rule in lifecycle.get("Rules", []) if _applies(rule, root)]
    return (
        _lifecycle(lifecycle, rules),
        _uploads(lifecycle, rules),
        _versioning(await _ask(call, "get_bucket_versioning"), rules),
        _object_lock(await _ask(call, "get_object_lock_configuration")),
        _encryption(await _ask(call, "get_bucket_encryption")),
    )


async def _ask(call: Call, method: str) -> Mapping[str, Any] | str:
    """Return a setting, or why it is not known."""
    try:
        return await call(method)
    except Exception as error:
        why = refusal(error)
        if why.error is not None:
            raise
        return {} if why.code in _NOT_SET else f"not known ({why.code})"


def _applies(rule: Mapping[str, Any], root: str) -> bool:
    """Return whether a rule is on, and for some keys of the root."""
    chosen = rule.get("Filter") or {}
    both = chosen.get("And") or {}
    prefix = str(rule.get("Prefix") or chosen.get("Prefix") or both.get("Prefix") or "")
    below = f"{root}/" if root else ""
    # Objects of a root have no tags.
    is_tagged = bool(chosen.get("Tag") or both.get("Tags"))
    return rule.get("Status") == "Enabled" and not is_tagged and (below.startswith(prefix) or prefix.startswith(below))


def _lifecycle(found: Mapping[str, Any] | str, rules: Sequence[Mapping[str, Any]]) -> BucketRule:
    if isinstance(found, str):
        return BucketRule("expiry by age", found)
    expiring = [rule for rule in rules if {"Days", "Date"} & (rule.get("Expiration") or {}).keys() or _archives(rule)]
    if not expiring:
        return BucketRule("expiry by age", "no rule")
    names = ", ".join(repr(rule.get("ID", "")) + " archives" * _archives(rule) for rule in expiring)
    return BucketRule("expiry by age", f"rule {names}", "leave this root out: old objects of it are in use", True)


def _archives(rule: Mapping[str, Any]) -> bool:
    """Return whether a rule moves objects to where they cannot be read at once."""
    return any(step.get("StorageClass") in _ARCHIVES for step in rule.get("Transitions") or [])


def _uploads(found: Mapping[str, Any] | str, rules: Sequence[Mapping[str, Any]]) -> BucketRule:
    if isinstance(found, str):
        return BucketRule("broken uploads", found)
    days = [rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"] for rule in rules if _aborts(rule)]
    if days:
        return BucketRule("broken uploads", f"aborted after {min(days)} days")
    return BucketRule("broken uploads", "no rule", "add a rule that aborts incomplete multipart uploads after two days")


def _aborts(rule: Mapping[str, Any]) -> bool:
    return "DaysAfterInitiation" in (rule.get("AbortIncompleteMultipartUpload") or {})


def _versioning(found: Mapping[str, Any] | str, rules: Sequence[Mapping[str, Any]]) -> BucketRule:
    if isinstance(found, str):
        return BucketRule("versioning", found)
    if found.get("Status") != "Enabled":
        return BucketRule("versioning", "off")
    expired = any("NoncurrentVersionExpiration" in rule for rule in rules)
    return BucketRule("versioning", "on", None if expired else _EXPIRE_VERSIONS)


def _object_lock(found: Mapping[str, Any] | str) -> BucketRule:
    if isinstance(found, str):
        return BucketRule("object lock", found)
    kept = ((found.get("ObjectLockConfiguration") or {}).get("Rule") or {}).get("DefaultRetention")
    if not kept:
        return BucketRule("object lock", "no retention by default")
    span = f"{kept['Days']} days" if kept.get("Days") else f"{kept.get('Years')} years"
    advice = "take it off for this root: each version of `_latest`, and all that cleanup deletes, stays until then"
    return BucketRule("object lock", f"{kept.get('Mode', '')} for {span}".lower(), advice)


def _encryption(found: Mapping[str, Any] | str) -> BucketRule:
    if isinstance(found, str):
        return BucketRule("encryption", found)
    rules = (found.get("ServerSideEncryptionConfiguration") or {}).get("Rules") or [{}]
    how = str((rules[0].get("ApplyServerSideEncryptionByDefault") or {}).get("SSEAlgorithm") or "not set")
    needs = ", which needs kms:GenerateDataKey and kms:Decrypt" if "kms" in how else ""
    return BucketRule("encryption", how + needs)
