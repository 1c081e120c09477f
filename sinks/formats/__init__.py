"""From Arrow rows to bytes, column by column: never one Python object per row."""
