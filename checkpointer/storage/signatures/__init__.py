"""Sign what is committed to a root, and read only what an allowed signer signed.

* `signing_keys.py` has the keys of a signer and those of the owners whom a reader trusts, and what a text names;
* `signers.py` reads and changes the object `_signers`, the owner's list of those whose signatures count;
* `rules.py` decides whether a signature counts for an object;
* `freshness.py` remembers the newest version that this process saw of each object;
* `versions.py` opens a version of an object by these two;
* `store.py` is the store that signs and checks.
"""

try:
    import cryptography  # noqa: F401
except ImportError as error:
    raise ImportError(
        "pyspark_checkpointer.storage.signatures needs cryptography: pip install "
        "'spark-state-checkpointer[encryption]'",
        name=error.name,
    ) from error
