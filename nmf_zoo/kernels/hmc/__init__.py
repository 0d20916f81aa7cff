"""Hamiltonian trajectories of the rows of a factor, and how they adapt."""
