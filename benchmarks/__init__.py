"""Benchmarks: every figure beside a peer's, measured in the same run. ``python -m benchmarks`` prints all of them."""
