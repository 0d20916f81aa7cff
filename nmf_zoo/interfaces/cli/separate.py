"""``nmf-zoo separate``: a recording in, its components out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from nmf_zoo.errors import InputError, NotWritten, number_of
from nmf_zoo.interfaces.cli.fit import make_options
from nmf_zoo.interfaces.cli.output import exit_code
from nmf_zoo.interfaces.cli.values import parse_seed

OWN = ("window", "hop", "alpha", "beta", "passes", "sample_format", "checkpoint", "cores")  # as nz.separate names them
OF_ENGINE = ("sweeps", "keep", "leaps", "exponent", "batch")


def run_separate(arguments: argparse.Namespace) -> int:
    seed = None if arguments.random_seed is None else parse_seed("--random-seed", arguments.random_seed)

    import nmf_zoo as nz

    options = {name: getattr(arguments, name) for name in OF_ENGINE if getattr(arguments, name) is not None}
    engine = make_options(nz.SimulatedOnlineEM, options)
    own = {name: getattr(arguments, name) for name in OWN if getattr(arguments, name) is not None}
    try:
        found = nz.separate(
            arguments.input,
            arguments.rank,
            arguments.output,
            engine=engine,
            random_seed=seed,
            force=arguments.force,
            quiet=arguments.quiet,
            **own,
        )
    except NotWritten:
        raise
    except InputError as error:
        name = f"--{error.name.replace('_', '-')}" if error.name in (*OWN, "output") else error.name
        raise InputError(name, error.got, error.expected, error.do.replace("force=True", "--force")) from error
    except KeyboardInterrupt as stop:
        goes_on = f"the same command goes on from {arguments.checkpoint}" if arguments.checkpoint else ""
        raise KeyboardInterrupt(goes_on) from stop
    return report(found, arguments)


def report(found: Any, arguments: argparse.Namespace) -> int:
    """What was done, in a line each, and the components in a table."""
    if not arguments.quiet:
        print(heading(found))
        _print_table(found)
        print(f"wrote {arguments.output} in {closing(found)}")
    if found.attrs["status"] == "complete":
        return 0
    goes_on = f"; the same command with --force goes on from {arguments.checkpoint}" if arguments.checkpoint else ""
    print(f"nmf-zoo: {found.attrs['status']}; {arguments.output} holds what that gives{goes_on}", file=sys.stderr)
    return exit_code()


def heading(found: Any) -> str:
    """``song.wav: 61.5 s at 22050 Hz, int16; 3761 frames of 360 frequencies (window 32.7 ms, hop 16.3 ms)``"""
    about = found.attrs
    mixed = f", {about['channels']} channels mixed down" if about["channels"] > 1 else ""
    window, hop = (f"{1000 * about[name] / about['rate']:.1f} ms" for name in ("window", "hop"))
    sound = f"{about['recording']}: {about['seconds_of_sound']:.1f} s at {about['rate']} Hz, {about['samples']}{mixed}"
    lines = number_of(found.sizes["frequency"], "frequency", "frequencies")
    frames = f"{number_of(about['frames'], 'frame')} of {lines} (window {window}, hop {hop})"
    return f"{sound}; {frames}"


def closing(found: Any) -> str:
    """``12.3 s, 5.0 times as fast as it plays``; of a part of the work only how long that took."""
    seconds, sound = found.attrs["seconds"], found.attrs["seconds_of_sound"]
    if found.attrs["resumed"] or found.attrs["status"] != "complete":
        return f"{seconds:.1f} s{', from where an earlier run ended' if found.attrs['resumed'] else ''}"
    return f"{seconds:.1f} s, {sound / seconds:.1f} times as fast as it plays"


def rows_of(found: Any) -> Iterator[tuple[str, ...]]:
    """File, share of the energy, the strongest frequency, and those between which 90 % of the profile's power lie."""
    frequency = found["frequency"].to_numpy()
    for k, share in enumerate(found["share"].to_numpy()):
        profile = found["W"].to_numpy()[:, k]
        below = profile.cumsum() / profile.sum()
        low, high = frequency[(below < 0.05).sum()], frequency[(below < 0.95).sum()]
        peak = frequency[profile.argmax()]
        yield f"component_{k + 1}.wav", f"{share:.1%}", f"{peak:.0f} Hz", f"{low:.0f} to {high:.0f} Hz"


def _print_table(found: Any) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    for name, side in (("file", "left"), ("energy", "right"), ("peak", "right"), ("90 % of its power", "right")):
        table.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
    for row in rows_of(found):
        table.add_row(*row)
    Console(highlight=False).print(table)
