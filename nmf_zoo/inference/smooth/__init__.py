"""Activations that change smoothly: chains in time with auxiliary variables, given which they are conjugate or nearly."""
