"""Keep a streaming query's state and Spark's own progress in step: check, rewind and fork both together."""
