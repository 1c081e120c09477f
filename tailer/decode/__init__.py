"""From commits and bytes to change batches: pure, synchronous, columnar."""
