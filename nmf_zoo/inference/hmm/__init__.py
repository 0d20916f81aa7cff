"""Factorisation in time: the columns of H are a Markov chain (Yildirim, Cemgil, Singh 2012)."""
