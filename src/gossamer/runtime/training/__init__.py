"""A client in a training loop of your own."""
