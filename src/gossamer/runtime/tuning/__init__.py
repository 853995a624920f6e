"""Step sizes, found by trials."""
