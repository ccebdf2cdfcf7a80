"""What the shared tests of providers know of each: its keys, and the environments of those who ask."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """A provider with two keys."""

    text: str
    """The text that names a key."""
    other: str
    """The text that names another key of the same service."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What an identity has in its environment that may use both keys."""
    secrets: tuple[str, ...] = ()
    """What nothing may show."""


@dataclass(frozen=True, kw_only=True)
class ServiceCase(Case):
    """A provider that asks a service."""

    missing: str
    """The text that names a key which is not there."""
    stranger: Mapping[str, str]
    """What an identity has that may use no key."""
    nobody: Mapping[str, str]
    """What somebody has without credentials."""
    down: Mapping[str, str]
    """What an identity has whose service does not answer."""
    rotate: Callable[[], None]
    """Make a new version of the key."""
