"""Many feeds in one process: supervision, control, metrics and console."""
