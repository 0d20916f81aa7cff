"""How momentum is scheduled (Ang and Gillis 2019, algorithm 3), in Python's iterations and in compiled ones alike."""

GROWTH, BOUND_GROWTH = 1.05, 1.01  # of a push and its bound, after one that went well
SHRINK = 2.0  # of both, after one that did not
FASTEST = 1.0
LARGEST_RATIO = 100.0  # of a cell, by one push
GENTLE = 0.05  # the first push of variational Bayes: a hard one early on leads to worse optima (NIPS, held-out words)
