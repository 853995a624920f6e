"""What is decided before the first round: how often a run is evaluated, and what fits into memory."""
