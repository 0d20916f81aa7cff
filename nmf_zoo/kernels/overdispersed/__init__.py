"""Compiled loops for negative binomial data."""
