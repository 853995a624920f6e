"""Whole rounds replayed: as a CUDA graph on a GPU, as a list of kernels on a CPU."""
