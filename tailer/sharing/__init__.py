"""Delta Sharing, as client and server: reading shared tables, and sharing them."""
