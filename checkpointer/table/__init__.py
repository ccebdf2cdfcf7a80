"""Table state as Arrow: schemas, merging, Parquet. Needs pyarrow; knows nothing of Spark's runtime."""
