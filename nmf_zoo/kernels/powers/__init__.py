"""Kernels of the engines for powers (Itakura-Saito)."""
