"""The process: its log lines, its signals, and its HTTP server."""
