"""Run a year of flights through two streaming jobs that are killed at bad moments, and check all totals at the end.

`maps.py` and `tables.py` are what a user writes. `__main__.py` starts them, kills them and compares. The other modules
are helpers.
"""
