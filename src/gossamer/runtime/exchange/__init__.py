"""Messages out, weighted neighbour sums back."""
