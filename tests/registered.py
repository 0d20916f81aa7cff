"""The registry as tests ask it."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args, get_type_hints

from nmf_zoo.inference import registry
from nmf_zoo.inference.counts.em import EM
from nmf_zoo.inference.counts.vb import VB
from nmf_zoo.runtime.engine import Engine
from nmf_zoo.structure import Exponential

VERBS = {name: registry.verb_of(name) for name in registry.names()}
OPTIONS = {name: registry.named(name)[0].options for name in VERBS}
OURS = {name: verb for name, verb in VERBS.items() if isinstance(registry.named(name)[0], Engine)}
OF_CHAINS = tuple(name for name in OURS if registry.named(name)[0].chains)
OF_POWERS = tuple(name for name in OURS if any(Exponential in entry.likelihoods for entry in registry.named(name)))
STREAMS = registry.entries("stream")
STARTS = get_args(get_type_hints(EM)["start"])
ORDERS = get_args(get_type_hints(VB)["order"])


def with_changed(entry, **changes):
    """A registry in which an entry is another, for ``monkeypatch.setattr(registry, "REGISTRY", ...)``."""
    assert any(own is entry for own in registry.REGISTRY)
    return [replace(own, **changes) if own is entry else own for own in registry.REGISTRY]
