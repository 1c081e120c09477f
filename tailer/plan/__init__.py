"""What a commit changes: the protocol's change rules, from actions to files to read."""
