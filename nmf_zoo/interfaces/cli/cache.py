"""``nmf-zoo compile`` and ``nmf-zoo cache``: compiled kernels on disk."""

from __future__ import annotations

import argparse

from nmf_zoo.errors import InputError


def run_compile(arguments: argparse.Namespace) -> int:
    from nmf_zoo.kernels.compile import cache

    folder = cache.chosen_folder()
    if reason := cache.refusal(folder):
        do = "set NMF_ZOO_CACHE; what is compiled would be lost"
        raise InputError("cache", f"{folder} ({reason})", "a folder that can be written", do)

    from nmf_zoo.interfaces.compiling import compile

    before = len(cache.kept())
    engines = None if arguments.engines is None else arguments.engines.split(",")
    seconds = compile(engines, cores=arguments.cores, quiet=arguments.quiet)
    if not arguments.quiet:
        kernels = cache.kept()
        new = f"{len(kernels) - before} kernels compiled in {sum(seconds.values()):.0f} CPU s"
        print(f"{new}; {len(kernels)} are kept in {folder}")
    return 0


def run_cache(arguments: argparse.Namespace) -> int:
    from nmf_zoo.kernels.compile import cache

    files, folder = cache.kept(), cache.chosen_folder()
    count, size = f"{len(files)} compiled kernels", f"{sum(path.stat().st_size for path in files) / 1e6:.1f} MB"
    if arguments.clear:
        cache.clear()
        print(f"removed {count}, {size}, from {folder}")
    else:
        print(f"{count}, {size}, in {folder}" if files else f"no compiled kernels in {folder}")
    return 0
