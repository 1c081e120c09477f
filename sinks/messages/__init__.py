"""What sinks that send each event as a message have in common."""
