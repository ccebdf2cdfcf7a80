"""Remove credentials from error messages.

Cloud packages may quote credentials in them.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

import fsspec.config

from pyspark_checkpointer.storage.registry import STORES

_HIDDEN = "***"
"""The text that replaces a secret in a message."""

_MIN_SECRET = 4
"""Characters that a secret has at least.

Shorter values would be found inside ordinary words.
"""

_MAX_MESSAGE = 300
"""Characters of a message that are shown at most."""

# Names of options whose values may be shown: an operator needs them to see which store an error is about.
_HARMLESS = {
    "account_host",
    "account_name",
    "accountname",
    "addressing_style",
    "blobendpoint",
    "defaultendpointsprotocol",
    "endpoint_url",
    "endpointsuffix",
    "host",
    "location_mode",
    "mode",
    "profile",
    "profile_name",
    "project",
    "region_name",
    "signature_version",
    "tenant_id",
}
_STORES = "|".join(kind.environment for kind in STORES if kind.environment)
_ENVIRONMENT = re.compile(rf"({_STORES})_\w*(KEY|SECRET|TOKEN|PASSWORD|CONNECTION_STRING)\w*")
"""Environment variables that hold secrets."""

# What looks like a secret by the name before it, such as `sig=…` in a signed URL, whether or not anybody gave it to us.
_QUOTED = re.compile(
    r"""(?ix) (
        \b (?: sig | signature | x-amz-(?:signature|credential|security-token) | account_?key | sharedaccesssignature
            | sas_token | (?:aws_)?secret_access_key | (?:aws_)?session_token | access_token | client_secret | upload_id
            | password | authorization ) ["']? \s* [=:] \s* ["']? (?: (?:basic|bearer|sharedkey|aws4-hmac-sha256) \s+ )?
    ) [^\s;&"',<>]+"""
)

# Shorter ones are words, as in "the bearer token".
_BEARER = re.compile(r"(?i)(\bbearer\s+)[^\s;&\"',<>]{12,}")


def scrub(text: str, options: Mapping[str, Any]) -> str:
    """Return the first line of `text` without any secret.

    Secrets are those of `options` and of the environment.
    """
    # fsspec adds its own configuration to the options of every file system, so its values may be quoted too.
    secrets = {*_secrets("", options), *_secrets("", fsspec.config.conf), *_environment()}
    # Longest first: a secret that contains another one would else be left in part.
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    lines = text.strip().split("\n", 2)
    line = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    # Cut last: of a secret that was cut in two, the first half would not be recognised.
    return _BEARER.sub(rf"\g<1>{_HIDDEN}", _QUOTED.sub(rf"\g<1>{_HIDDEN}", line))[:_MAX_MESSAGE]


def _environment() -> Iterator[str]:
    """Yield the secrets in the environment of this process."""
    for name, value in os.environ.items():
        if _ENVIRONMENT.fullmatch(name):
            yield from _secrets(name, value)


def _secrets(name: str, value: Any) -> Iterator[str]:
    """Yield every text inside the option `name` that may be secret, in every spelling."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _secrets(str(key), inner)
    elif isinstance(value, list | tuple | set):
        for inner in value:
            yield from _secrets(name, inner)
    elif isinstance(value, bytes):
        yield from _secrets(name, value.decode("utf-8", "replace"))
    elif isinstance(value, str):
        yield from _of_text(name, value)


def _of_text(name: str, value: str) -> Iterator[str]:
    """Yield possible secrets in a text: the whole text, and the values of settings."""
    if "://" in value and "@" in value:
        # The user and password of an endpoint or proxy. The last @ counts, since a password may hold one itself.
        yield value.partition("://")[2].rpartition("@")[0]
    # Connection strings and tokens are lists of settings; any of them may be quoted alone.
    for setting in re.split(r"[;&?]", value):
        key, equals, inner = setting.partition("=")
        if equals and key.lower() not in _HARMLESS:
            yield from _spellings(inner)
    if name.lower() not in _HARMLESS:
        for line in (value, *value.splitlines()):  # an error may quote any line of a private key in PEM
            yield from _spellings(line)


def _spellings(value: str) -> Iterator[str]:
    """Yield a secret as it may be quoted: as it is, as part of a URL, and escaped."""
    escaped = (repr(value)[1:-1], json.dumps(value)[1:-1])
    # A SAS token may be given with the question mark of its URL, and is quoted without it.
    for spelling in (value, value.lstrip("?"), quote(value, safe=""), unquote(value), *escaped):
        if len(spelling) >= _MIN_SECRET:
            yield spelling
