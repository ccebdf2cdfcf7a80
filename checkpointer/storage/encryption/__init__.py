"""Encrypt a root by its clients: the store sees no content.

* `chunked.py` encrypts bytes, and decrypts parts of them;
* `outer_tags.py` authenticates stored bytes for one who cannot decrypt them, and `artifact_check.py` checks them so;
* `data_keys.py` has the keys of a root, and says how contents are stored;
* `stored_names.py` says at which path an object is stored;
* `key_providers.py` wraps the keys of a root with a key that is not in the store;
* `key_services/` does so by asking a key service of a cloud, or a vault;
* `key_registry.py` finds the provider that a text names;
* `keyring.py` reads, makes and replaces the object `_keys`, which holds the wrapped keys;
* `wrappings.py` says which keys open a root, those of cleaners too;
* `generations.py` gives a root another data key;
* `store.py` is the store that encrypts;
* `root_keys.py` does what callers ask of the keys of a root.
"""

try:
    import cryptography  # noqa: F401
except ImportError as error:
    raise ImportError(
        "pyspark_checkpointer.storage.encryption needs cryptography: pip install "
        "'spark-state-checkpointer[encryption]'",
        name=error.name,
    ) from error
