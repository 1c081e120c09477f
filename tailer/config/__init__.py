"""CONFIG.toml: its settings, and the feeds that it describes."""
