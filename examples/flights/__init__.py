"""A year of flights through a Structured Streaming job that is killed three times, and every total right at the end.

`job.py` is what a user writes; `__main__.py` starts it, kills it, and compares; the other modules help the two.
"""
