"""Draws from keyed streams: what every sampler is made of."""
