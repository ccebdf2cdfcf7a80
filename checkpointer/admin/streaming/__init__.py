"""A streaming query as a whole: its state here, and Spark's own progress, which belong together."""
