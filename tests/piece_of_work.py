"""A piece of work that other processes can import quickly."""

from __future__ import annotations

import time


def draw(item, job):
    """Slow ones first, so that they end in the opposite order where there are threads."""
    time.sleep(item / 2000)
    return item, job.number, int(job.key) % 1009
