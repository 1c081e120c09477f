"""Tables of a Delta Sharing server, as a store: its answers become a log and files."""
