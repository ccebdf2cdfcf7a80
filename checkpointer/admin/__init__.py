"""Administer a store: inspect, keep, roll back, clean up, copy and repair.

No batch uses this package.
"""
