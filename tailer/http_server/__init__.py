"""The HTTP server of the daemon and of the sharing server."""
