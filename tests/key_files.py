"""Keys of encrypted roots in files."""

import secrets
from pathlib import Path


def make_key(path: Path) -> str:
    """Write a key to a file, and return what `encryption=` takes for it."""
    path.write_text(secrets.token_hex(32))
    return f"key-file:{path}"
