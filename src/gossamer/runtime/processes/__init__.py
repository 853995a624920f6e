"""One client per process."""
