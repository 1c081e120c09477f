"""One daemon with many feeds for hours: what it takes must not grow. See ``__main__``."""
