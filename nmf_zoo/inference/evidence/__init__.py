"""The evidence log p(X) with the factors integrated out: what a method is, and the methods by name."""

from nmf_zoo.inference.evidence import bound, chib, enumeration, smc
from nmf_zoo.inference.evidence.contract import Estimate, EvidenceRun, Job, Method, Result, combine, has_evidence

METHODS: dict[str, Method] = {module.METHOD.name: module.METHOD for module in (bound, chib, smc, enumeration)}

__all__ = ["METHODS", "Estimate", "EvidenceRun", "Job", "Method", "Result", "combine", "has_evidence"]
