"""A campaign of damaged files against every reader: ``python -m tests.property.files --cases 500 --seed 0``.

Each case is a sound file, damaged as its number and the seed say. Allowed is a value that is in the file, or one
`InputError` of one line; all else is a failure: another exception, a crash, more than `SECONDS` or `MEMORY`, a warning
that isn't ours, a value that isn't in the file. Files are read in a process of its own, so that a segmentation fault is
a failure, too, and not the end.
"""

from tests.property.files.run import Report, run

__all__ = ["Report", "run"]
