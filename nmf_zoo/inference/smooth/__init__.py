"""Activations that change smoothly: chains in time beside auxiliary variables that make them conjugate, or nearly."""
