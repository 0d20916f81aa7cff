"""Slow, obvious twins of ``nmf_zoo/kernels/hmm/particles``."""
