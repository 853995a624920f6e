"""How rounds use a GPU."""
