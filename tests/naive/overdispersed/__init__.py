"""Slow, obvious twins of ``nmf_zoo/kernels/overdispersed``."""
