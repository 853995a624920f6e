"""Data sets: where they come from, how they are read, and which client holds which rows."""
