"""Read the settings of a Google Cloud Storage bucket that matter to a root."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark_checkpointer.storage.base import BucketRule

_LEAVE_OUT = "leave this root out: `_latest` is replaced at every commit, and cleanup deletes"


def rules_of(bucket: Mapping[str, Any], root: str) -> Sequence[BucketRule]:
    """Return the settings in the service's description of a bucket.

    `root` is the prefix of the root.
    """
    return (
        _lifecycle(bucket, root),
        _versioning(bucket),
        _soft_delete(bucket),
        _retention(bucket),
        BucketRule("encryption", str((bucket.get("encryption") or {}).get("defaultKmsKeyName") or "by the service")),
    )


def _lifecycle(bucket: Mapping[str, Any], root: str) -> BucketRule:
    deleting = [rule for rule in (bucket.get("lifecycle") or {}).get("rule", []) if _deletes(rule, root)]
    if not deleting:
        return BucketRule("expiry by age", "no rule")
    found = f"{len(deleting)} rules delete objects" if len(deleting) > 1 else "a rule deletes objects"
    return BucketRule("expiry by age", found, "leave this root out: old objects of it are in use", True)


def _deletes(rule: Mapping[str, Any], root: str) -> bool:
    """Return whether a rule deletes objects of the root that nobody has replaced."""
    condition = rule.get("condition") or {}
    noncurrent = condition.get("isLive") is False or condition.keys() & {
        "numNewerVersions",
        "daysSinceNoncurrentTime",
        "noncurrentTimeBefore",
        # Objects of a root have no custom time.
        "daysSinceCustomTime",
        "customTimeBefore",
    }
    below = f"{root}/" if root else ""
    prefixes = condition.get("matchesPrefix") or [""]
    touches = any(below.startswith(prefix) or prefix.startswith(below) for prefix in prefixes)
    return (rule.get("action") or {}).get("type") == "Delete" and touches and not noncurrent


def _versioning(bucket: Mapping[str, Any]) -> BucketRule:
    if not (bucket.get("versioning") or {}).get("enabled"):
        return BucketRule("versioning", "off")
    return BucketRule("versioning", "on", "add a lifecycle rule for noncurrent versions, or cleanup frees nothing")


def _soft_delete(bucket: Mapping[str, Any]) -> BucketRule:
    seconds = int((bucket.get("softDeletePolicy") or {}).get("retentionDurationSeconds") or 0)
    if not seconds:
        return BucketRule("soft delete", "off")
    advice = "shorten it or turn it off: each old `_latest` is kept and paid for until then"
    return BucketRule("soft delete", f"keeps what was deleted for {seconds / 86400:g} days", advice)


def _retention(bucket: Mapping[str, Any]) -> BucketRule:
    seconds = int((bucket.get("retentionPolicy") or {}).get("retentionPeriod") or 0)
    if seconds:
        return BucketRule("retention policy", f"{seconds / 86400:g} days", "use a bucket without one", True)
    if bucket.get("defaultEventBasedHold"):
        return BucketRule("retention policy", "an event-based hold by default", _LEAVE_OUT, True)
    return BucketRule("retention policy", "none")
