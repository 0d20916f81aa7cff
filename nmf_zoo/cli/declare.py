"""A model from the words of the command line."""

from __future__ import annotations

import argparse
from typing import Any

from nmf_zoo.cli.fit import model_arguments, name_cell, read_data
from nmf_zoo.errors import InputError


def declare(arguments: argparse.Namespace, rank: int) -> Any:
    """The model of ``--model`` and its hyperparameters on the file ``input``; cells are named by the file's labels."""
    data, hyperparameters = read_data(arguments), model_arguments(arguments)
    from nmf_zoo.models import MODELS

    try:
        return MODELS[arguments.model](rank=rank, **data, **hyperparameters)
    except InputError as error:
        raise InputError(error.name, name_cell(error.got, data["coords"]), error.expected, error.do) from error
