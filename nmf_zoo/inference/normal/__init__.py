"""Engines of normal data, whose errors may differ between cells."""
