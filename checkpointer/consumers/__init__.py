"""Store positions of stream consumers, behind interfaces that they already use.

The positions are on the same stores as the state of jobs.
"""
