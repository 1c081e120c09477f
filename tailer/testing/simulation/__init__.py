"""A simulator of the feed and its daemon: real code, simulated time, faults picked by a seed."""
