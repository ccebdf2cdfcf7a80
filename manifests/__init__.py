"""The format of a store: values and bytes, without any input or output. `SPEC.md` beside this file is normative."""

if __name__ == "manifests":  # imported from a checkout, by the name of the folder
    from pyspark_checkpointer.one_copy import import_as

    import_as(__name__, "pyspark_checkpointer.manifests")
