"""Special functions, moments and products that kernels of all families call."""
