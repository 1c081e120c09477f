"""Which rows are delivered, with which columns: DuckDB's expressions over the rows of a table."""
