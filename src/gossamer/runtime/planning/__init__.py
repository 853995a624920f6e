"""What is decided before the first round: which method suits a network, how often a run is evaluated, and what fits."""
