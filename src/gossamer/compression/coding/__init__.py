"""Encoding of integers and floats as bytes: the coders that messages use."""
