"""Rows in SIMD registers, and views without reference counts."""
