"""Slow, obvious twins of the kernels, in the folders that these have."""
