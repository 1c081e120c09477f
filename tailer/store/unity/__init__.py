"""Tables that a Unity Catalog names, and those whose commits it ratifies."""
