"""Whether a result can be relied on: convergence, alignment of components, agreement, distances from the truth."""
