"""What really changed in a version that rewrites files: its rows before and after, compared."""
