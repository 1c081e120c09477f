"""What runs have seen of the promises, and the page that says it. See ``__main__``."""
