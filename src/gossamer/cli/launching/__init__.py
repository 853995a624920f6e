"""What `gossamer launch` is made of."""
