"""Changes as ordinary frames, which Spark's own Parquet reader reads where it can."""
