"""Particle filters and smoothers for activations that are Markov chains.

Arrays of particles are components x particles, particles contiguous: loops over particles run in SIMD lanes. `laws`
says what a cloud of particles and a law are, and hands on to the chain's own file (`basis`, `unit`, `log_normal`);
`emission` weighs particles by a sample, `filter` is a step from one sample to the next.
"""
