"""The daemon's feeds on a cluster."""
