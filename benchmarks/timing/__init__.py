"""What `benchmarks/speed.py` measures, against what, and how."""
