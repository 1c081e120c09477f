"""Those who write a round's table."""
