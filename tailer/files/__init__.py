"""Local files: durable writes, and temporary folders."""
