"""Name the object and the next step where a key service refuses.

The errors never repeat what the service said.
"""

from pyspark_checkpointer.errors import (
    CheckpointError,
    DependencyError,
    IllegalArgumentError,
    StoreRefusedError,
    ThrottlingError,
)

PURPOSE = "spark-state-checkpointer keys"
"""The text that a service binds to what it wraps: nothing that it wrapped for another purpose is opened as keys."""


def no_credentials(name: str, advice: str) -> CheckpointError:
    """Return the error for a service that was not asked, since nobody says who asks."""
    return StoreRefusedError(f"{name}: there are no valid credentials for the service: {advice}")


def no_permission(name: str, code: str, permission: str) -> CheckpointError:
    """Return the error for a service that does not let this identity use the key."""
    return StoreRefusedError(f"{name}: permission denied ({code}): give this identity {permission}")


def no_key(name: str) -> CheckpointError:
    """Return the error for a key that the service does not have."""
    return IllegalArgumentError(f"{name}: there is no such key: create it, or correct the name")


def unusable_key(name: str, code: str, needed: str) -> CheckpointError:
    """Return the error for a key that is there, and does not do what is asked."""
    return StoreRefusedError(f"{name}: the key cannot be used ({code}): {needed}")


def unreachable(name: str, said: str) -> CheckpointError:
    """Return the error for a service that did not answer, or not as it should."""
    return DependencyError(f"{name}: the service did not answer ({said}): check the network, and try again")


def throttled(name: str, code: str) -> CheckpointError:
    """Return the error for a service that asks for fewer requests."""
    return ThrottlingError(f"{name}: the service asks for fewer requests ({code}): try again later")


__all__ = [
    "PURPOSE",
    "no_credentials",
    "no_key",
    "no_permission",
    "throttled",
    "unreachable",
    "unusable_key",
]
