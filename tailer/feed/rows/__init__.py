"""From planned files to change batches: fetch, decode, and the offsets between batches."""
