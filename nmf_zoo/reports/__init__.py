"""One result as one self-contained web page.

:mod:`.write` puts the page together; ``data``, ``declaration``, ``run``, ``convergence`` and ``pictures`` are its
sections; :mod:`.page` knows HTML and nothing of results, :mod:`.source` what a result has to say.
"""

from nmf_zoo.reports.write import report

__all__ = ["report"]
