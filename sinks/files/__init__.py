"""Change events as Parquet, Arrow or JSON lines files, in a folder or on S3."""
