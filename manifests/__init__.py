"""The format of a store: values and bytes, without any input or output. `SPEC.md` beside this file is normative."""
