"""Positions of stream consumers, behind interfaces that the consumers already use.

The positions are on the same stores as the state of jobs.
"""
