"""Numba loops, which know arrays and streams and nothing else.

Keyed random streams (`streams`), draws from them (`draws`: continuous; `counts`: discrete; `gig`), and the loops of the
engines.

A kernel validates nothing, allocates nothing in its loops and raises nothing; its caller has checked and allocated.
"""
