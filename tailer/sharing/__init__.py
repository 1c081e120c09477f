"""Delta Sharing, both ways: a client that reads shared tables, a server that shares them."""
