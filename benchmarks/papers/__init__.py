"""The papers' figures, one command each: ``python -m benchmarks.papers.<name> [--quick]``."""
