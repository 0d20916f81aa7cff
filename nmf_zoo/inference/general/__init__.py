"""Engines for any likelihood that can say what they need of it."""
