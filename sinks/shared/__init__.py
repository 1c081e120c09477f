"""What sinks of several kinds share."""
