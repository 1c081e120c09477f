"""Rounds at random on real components: a real writer, a store, a daemon and a second one, a sink,
and faults. At the end of each round the target is the table, or the round's seed is printed."""
