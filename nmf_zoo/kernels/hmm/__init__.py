"""Kernels of chains in time: exact recursions over binary states, and particles."""
