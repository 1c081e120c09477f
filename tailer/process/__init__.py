"""The process: its log lines and its signals."""
