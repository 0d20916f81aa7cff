"""Tutorials, numbered in the order in which to read them. ``python -m notebooks.run`` executes all of them."""
