"""Kernels of the estimates of the evidence."""
