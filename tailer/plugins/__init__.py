"""What packages of others add, and how a mistake in one is found when it is loaded."""
