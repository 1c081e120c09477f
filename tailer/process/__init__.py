"""The process: its log lines, its signals and its worker threads."""
