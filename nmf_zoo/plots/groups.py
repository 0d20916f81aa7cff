"""Groups of features or of samples: their colours, and their names over or beside what is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.errors import InputError, number_of
from nmf_zoo.labels import flat_labels
from nmf_zoo.plots.figure import COLOURS, INK, as_text

MORE = ("#7f3c8d", "#8a6d3b", "#3b8a6d", "#a5aa99", "#b3446c", "#604e97", "#882d17", "#2b3d26", "#6d8fb3", "#b38a2b")
PALETTE = (*COLOURS, *MORE)
NAME_ALL = "name a group of every label"
LETTER = 0.075  # inches of a letter of a heading


class Band(NamedTuple):
    """Neighbours in one group: their first place and the one after the last, its name and colour, what is over it."""

    start: int
    stop: int
    name: str
    colour: str
    over: str = ""


class Groups(NamedTuple):
    """Of labels: the names of groups, which one each label is in, and the groups' colours."""

    names: list[str]
    members: np.ndarray
    colours: list[str]

    @property
    def order(self) -> np.ndarray:
        """Places of the labels, group by group, as they come within each."""
        return np.argsort(self.members, kind="stable")

    @property
    def bands(self) -> list[Band]:
        """Of the labels in that order."""
        ends = np.cumsum(np.bincount(self.members, minlength=len(self.names)))
        starts = [0, *ends[:-1]]
        return [Band(*each) for each in zip(starts, ends, self.names, self.colours, strict=True)]


def read_groups(argument: str, given: Any, labels: np.ndarray) -> Groups:
    """``feature_groups=`` and ``sample_groups=``, in the order in which groups come first.

    Parameters
    ----------
    given : mapping or Series from labels, or what they are as text, to groups; or one group for each label, in order
    """
    found = _each(argument, given, labels)
    words = [_word(argument, label, group) for label, group in zip(labels.tolist(), found, strict=True)]
    names = list(dict.fromkeys(words))
    if len(names) > len(PALETTE):
        raise InputError(
            argument, number_of(len(names), "group"), f"up to {len(PALETTE)}, which colours can tell apart"
        )
    at = {name: place for place, name in enumerate(names)}
    return Groups(names, np.array([at[word] for word in words]), list(PALETTE[: len(names)]))


def _each(argument: str, given: Any, labels: np.ndarray) -> list[Any]:
    """The group of every label."""
    expected, own = (
        f"{number_of(len(labels), 'group')}, one for each label, or a mapping or Series of labels",
        labels.tolist(),
    )
    if hasattr(given, "columns") or getattr(given, "ndim", 1) != 1:
        shape = " x ".join(map(str, np.shape(given)))
        do = "give one column of it, e.g. table['group']" if hasattr(given, "columns") else "give one row of it"
        raise InputError(argument, f"a table of {shape}", expected, do)
    if hasattr(given, "to_dict") and hasattr(given, "index"):
        repeated = given.index[given.index.duplicated()]
        if len(repeated):
            do = "keep one row of each"
            raise InputError(argument, f"the label {str(repeated[0])!r} more than once", "each label once", do)
        given = dict(zip(flat_labels(given.index), given, strict=True))
    if isinstance(given, Mapping):
        given = _by_time(given, labels.dtype) if labels.dtype.kind == "M" else given
        at = [label if label in given else as_text(name) for label, name in zip(own, labels, strict=True)]
        missing = next((as_text(name) for key, name in zip(at, labels, strict=True) if key not in given), None)
        if missing is not None:
            raise InputError(
                argument, f"no group of {missing!r}", f"{number_of(len(labels), 'label')} in groups", NAME_ALL
            )
        return [given[key] for key in at]
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InputError(argument, " ".join(repr(given).split())[:60], expected)
    found = list(given)
    if len(found) != len(labels):
        raise InputError(argument, number_of(len(found), "group"), expected)
    return found


def _by_time(given: Mapping[Any, Any], dtype: np.dtype) -> dict[Any, Any]:
    """The same with times as ``tolist`` gives those of ``dtype``, whatever kind of date they were."""
    try:
        return {np.datetime64(key).astype(dtype).item(): group for key, group in given.items()}
    except ValueError:  # no dates: none of the labels is there
        return dict(given)


def _word(argument: str, label: Any, group: Any) -> str:
    """The name of a group; what is missing in a table is None or NaN, which is no name."""
    if group is None or group != group or str(group) in ("<NA>", "NaT"):
        raise InputError(argument, f"no group of {str(label)!r} ({group})", "a name for each label", NAME_ALL)
    if not isinstance(group, str | bytes) and np.ndim(group):
        raise InputError(argument, f"{' '.join(repr(group).split())[:40]} of {str(label)!r}", "one name", NAME_ALL)
    return str(group)


def draw_headings(figure: Any, axes: Any, bands: list[Band], inches: float) -> None:
    """Strips in the groups' colours above an axis whose places are ``inches`` apart, named there, or in a legend."""
    fits = all(LETTER * len(band.name) <= inches * (band.stop - band.start) for band in bands)
    for band in bands:
        _strip(axes, band.start, band.stop, band.colour)
        if fits:
            middle = (band.start + band.stop - 1) / 2
            _heading(axes, middle, 1.09, band.name, 7.5)
    runs = _runs(bands)
    for start, stop, over in runs:
        _heading(axes, (start + stop - 1) / 2, 1.27, over, 7.5)
    if not fits:
        name_groups(figure, [band.name for band in bands], [band.colour for band in bands])


def name_groups(figure: Any, names: list[str], colours: list[str]) -> None:
    """A legend below the picture."""
    from matplotlib.patches import Patch

    patches = [Patch(color=colour, label=name) for name, colour in zip(names, colours, strict=True)]
    widest = max(len(name) for name in names)
    columns = max(1, min(len(names), int(figure.get_figwidth() / (0.45 + LETTER * widest))))
    figure.legend(handles=patches, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


def _runs(bands: list[Band]) -> list[tuple[int, int, str]]:
    """Neighbouring bands with something in common."""
    found: list[tuple[int, int, str]] = []
    for band in (band for band in bands if band.over):
        if found and found[-1][2] == band.over:
            found[-1] = found[-1][0], band.stop, band.over
        else:
            found.append((band.start, band.stop, band.over))
    return found


def _strip(axes: Any, start: int, stop: int, colour: str) -> None:
    where = {"transform": axes.get_xaxis_transform(), "clip_on": False, "solid_capstyle": "butt"}
    axes.plot([start - 0.4, stop - 0.6], [1.05, 1.05], color=colour, lw=4, **where)


def _heading(axes: Any, place: float, height: float, text: str, size: float) -> None:
    where = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom", "color": INK}
    axes.text(place, height, text, fontsize=size, **where)
