"""Models as a program and its weights: what exporters of targets take."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.ir.graph import Graph
from rlx.models.decoder import build_decoder
from rlx.models.model_files import open_decoder
from rlx.models.pull import find_model

Array = np.ndarray[Any, np.dtype[Any]]


def model_program(path_or_name: str) -> tuple[Graph, dict[str, Array]]:
    """The graph of a decoder and its weights by name, as they are stored."""
    files = open_decoder(find_model(path_or_name))
    built = build_decoder(files.config, files.weights)
    return built.graph, {name: weight.read() for name, weight in built.weights.items()}
