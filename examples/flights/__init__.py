"""A year of flights through two Structured Streaming jobs that are killed at bad moments, all of it right at the end.

`maps.py` and `tables.py` are what a user writes; `__main__.py` starts them, kills them, and compares; the other
modules help them.
"""
