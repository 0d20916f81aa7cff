"""Numba loops, which know arrays and streams and nothing else.

`compile` alone knows how numba compiles them. `random` has keyed streams (`keyed_rng`) and draws from them, `numerics`
special functions and moments, `simd` rows in registers and views that keep calls cheap, `hmc` trajectories; the other
folders hold the loops of the engines, by what they are for: `counts`, `powers`, `hmm`, `marginal`, `evidence`.

A kernel validates nothing, allocates nothing in its loops and raises nothing; its caller has checked and allocated.
"""
