"""Numba loops, which know arrays and streams and nothing else.

Keyed random streams (`streams`), draws from them (`draws`: continuous; `counts`: discrete; `gig`), the loops of the
engines, `borrow`, which keeps calls between them cheap, and `compile`, which alone knows how numba compiles them.

A kernel validates nothing, allocates nothing in its loops and raises nothing; its caller has checked and allocated.
"""
