"""Integers as bits: the coders under the messages."""
