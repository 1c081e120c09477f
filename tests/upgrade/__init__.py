"""State that earlier releases have written, and the history that they read."""
