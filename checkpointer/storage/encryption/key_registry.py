"""List the providers of keys that a text can name.

How to add a provider that a text can name:

1. Write a frozen dataclass in a file of `key_services/`, with the members of `NamedProvider`. It holds the name of the
   key alone, and takes credentials from the environment of its service. Its errors are of
   `pyspark_checkpointer.errors`, mostly by `key_services/refusals.py`, and show nothing that the service said.
2. Enter it in `PROVIDERS` below.
3. If it needs a package, add an extra of its name to `pyproject.toml`, there also to the group `dev`, to `EXTRAS` in
   `tests/test_imports.py`, to the layer `store` in `tests/test_layers.py` and to the table of extras in `README.md`.
4. Add a server or a fake of its service to `tests/storage/encryption/key_services/conftest.py`: the shared tests then
   run on it.
5. Say in `manifests/ENCRYPTION.md` what it stores. Name it in `docs/encryption.md`, and in the help of
   `encryption_option` in `checkpointer/cli/arguments.py`.
"""

from typing import Protocol, Self

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.storage.encryption.key_providers import (
    HIDE_NAMES,
    HiddenNames,
    KeyFile,
    KeyProvider,
    PassphraseFile,
)
from pyspark_checkpointer.storage.encryption.key_services.aws_kms import AwsKms
from pyspark_checkpointer.storage.encryption.key_services.azure_key_vault import AzureKeyVault
from pyspark_checkpointer.storage.encryption.key_services.google_kms import GoogleKms
from pyspark_checkpointer.storage.encryption.key_services.vault import Vault


class NamedProvider(KeyProvider, Protocol):
    """A kind of provider that a text can name.

    The text is the word of the provider, a colon, and the name of the key.
    """

    provider: str
    form: str
    """The form in which the name of a key is written, for messages."""

    @classmethod
    def named(cls, name: str) -> Self | None:
        """Return the provider of a key; None for a text that names none."""


PROVIDERS: dict[str, type[NamedProvider]] = {
    kind.provider: kind for kind in (KeyFile, PassphraseFile, AwsKms, AzureKeyVault, GoogleKms, Vault)
}


def parse_provider(text: str) -> KeyProvider:
    """Return the provider that a text names.

    The text is such as `key-file:/run/secrets/state.key`, perhaps with `hide-names:` before it.

    Raises `IllegalArgumentError` for any other text. It is not repeated, as it may be a key.
    """
    kind, colon, name = text.partition(":")
    if colon and kind == HIDE_NAMES and not name.startswith(f"{HIDE_NAMES}:"):
        return HiddenNames(parse_provider(name))
    chosen = [PROVIDERS[kind]] if colon and kind in PROVIDERS else list(PROVIDERS.values())
    found = chosen[0].named(name) if len(chosen) == 1 else None
    if found is None:
        forms = " or ".join(f"{one.provider}:{one.form}" for one in chosen)
        raise IllegalArgumentError(f"encryption: expected {forms}, got a text of {len(text)} characters")
    return found


__all__ = ["PROVIDERS", "parse_provider"]
