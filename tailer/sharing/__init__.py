"""The client side of the Delta Sharing protocol, and what its server shares with it."""
