"""Keeps credentials out of what is shown: error messages of cloud packages may quote what they were given."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

_HIDDEN = "***"
_SHORTEST = 4
_LONGEST = 300

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
    "location_mode",
    "mode",
    "profile",
    "profile_name",
    "project",
    "region_name",
    "signature_version",
    "tenant_id",
}
_ENVIRONMENT = re.compile(r"(AWS|AZURE)_\w*(KEY|SECRET|TOKEN|PASSWORD|CONNECTION_STRING)\w*")
_QUOTED = re.compile(
    r"(?i)(\b(?:sig|signature|x-amz-signature|x-amz-credential|x-amz-security-token|accountkey"
    r"|sharedaccesssignature|authorization)\s*[=:]\s*)[^\s;&\"',<>]+"
)


def scrub(text: str, options: Mapping[str, Any]) -> str:
    """The first line of `text`, of bounded length, without any secret of `options` or of the environment."""
    lines = text.strip().split("\n", 2)
    line = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    secrets = {*_secrets("", options), *_environment()}
    for secret in sorted(secrets, key=len, reverse=True):
        line = line.replace(secret, _HIDDEN)
    return _QUOTED.sub(rf"\g<1>{_HIDDEN}", line)[:_LONGEST]


def _environment() -> Iterator[str]:
    for name, value in os.environ.items():
        if _ENVIRONMENT.fullmatch(name):
            yield from _secrets(name, value)


def _secrets(name: str, value: Any) -> Iterator[str]:
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
    if "://" in value and "@" in value:
        yield value.partition("://")[2].rpartition("@")[0]
    # Connection strings and tokens are lists of settings; any of them may be quoted alone.
    for setting in re.split(r"[;&?]", value):
        key, equals, inner = setting.partition("=")
        if equals and key.lower() not in _HARMLESS:
            yield from _spellings(inner)
    if name.lower() not in _HARMLESS:
        yield from _spellings(value)


def _spellings(value: str) -> Iterator[str]:
    for spelling in (value, value.lstrip("?"), quote(value, safe=""), unquote(value)):
        if len(spelling) >= _SHORTEST:
            yield spelling
