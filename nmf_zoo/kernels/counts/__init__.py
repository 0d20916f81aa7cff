"""Kernels of the engines for counts."""
