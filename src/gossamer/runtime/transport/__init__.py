"""Bytes to and from neighbours."""
