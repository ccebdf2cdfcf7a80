"""Define the format of a store: values and their bytes, without I/O.

`SPEC.md` beside this file is normative.
"""

# Imported from a checkout, by the name of the folder.
if __name__ == "manifests":
    from pyspark_checkpointer.one_copy import import_as

    import_as(__name__, "pyspark_checkpointer.manifests")
