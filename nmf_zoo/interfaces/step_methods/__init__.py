"""PyMC step methods: our kernels for a part of someone's own model, while PyMC samples the rest."""

from __future__ import annotations

from nmf_zoo.interfaces.step_methods.conjugate_gibbs import ConjugateGibbs

__all__ = ["ConjugateGibbs"]
