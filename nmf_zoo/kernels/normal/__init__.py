"""Factors of normal data: draws, moments and moves of their cells."""
