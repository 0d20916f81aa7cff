"""Tutorials. ``python -m notebooks.run`` executes all of them."""
