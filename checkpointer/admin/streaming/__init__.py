"""Keep a streaming query's state and Spark's own progress in step.

Check, rewind and fork handle both together.
"""
