"""Where the gradients of a round come from."""
