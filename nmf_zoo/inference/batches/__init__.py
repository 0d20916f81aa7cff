"""Engines for Poisson counts of samples in batches: those of counts, with multipliers as exposures that are drawn."""
