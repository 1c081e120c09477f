"""Tables that catalogs name, and those whose commits a catalog ratifies."""
