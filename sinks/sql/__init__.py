"""What sinks that write to SQL databases share: claims, transactions and the merge."""
