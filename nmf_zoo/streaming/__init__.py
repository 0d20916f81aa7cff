"""Factorisation of a stream: samples come one by one, or block by block, in memory that does not grow."""
