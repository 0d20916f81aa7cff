"""Engines for negative binomial data: a gamma multiplier of each cell, made anew wherever it is asked for."""
