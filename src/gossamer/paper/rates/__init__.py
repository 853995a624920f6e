"""The rates of the paper, measured as slopes."""
