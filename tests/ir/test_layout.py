"""Tiles, strides and ragged arrays against NumPy's."""

import numpy as np
import pytest

from rlx.compat.layout import Coord2, Ragged, ShapeTuple, Strides2, Strides3, Tile2, Tile3
from rlx.errors import ShapeError


def test_tiles():
    assert Tile2(4, 8).area == 32
    assert Tile3(2, 4, 8).area == 64


@pytest.mark.parametrize(("order", "strides"), [("C", Strides2.row_major(5)), ("F", Strides2.col_major(3))])
def test_strides_address_the_elements_of_a_matrix(order, strides):
    matrix = np.arange(15).reshape(3, 5)
    flat = matrix.flatten(order)
    for row in range(3):
        for col in range(5):
            assert flat[strides.offset(Coord2(row, col))] == matrix[row, col]


def test_strides3_are_numpys():
    array = np.zeros((2, 3, 5), np.uint8)
    assert Strides3.row_major(3, 5) == array.strides


def test_shape_tuple():
    shape = ShapeTuple.nested([ShapeTuple.leaf(4), ShapeTuple.nested([ShapeTuple.flat([2, 3]), ShapeTuple.leaf(5)])])
    assert str(shape) == "(4, ((2, 3), 5))"
    assert (shape.rank, shape.product, shape.flatten()) == (2, 120, (4, 2, 3, 5))
    assert shape.get((1, 0)) == ShapeTuple.flat([2, 3])
    assert shape.get((1, 0, 1)) == ShapeTuple.leaf(3)
    assert shape.get(()) is shape
    assert not shape.is_leaf
    leaf = ShapeTuple.leaf(7)
    assert leaf.is_leaf and (leaf.rank, leaf.product, leaf.flatten()) == (1, 7, (7,))
    assert ShapeTuple.flat([]).product == 1


@pytest.mark.parametrize("path", [(2,), (0, 0), (-1,)])
def test_shape_tuple_path_outside(path):
    with pytest.raises(ShapeError, match="leaves the tree"):
        ShapeTuple.flat([2, 3]).get(path)


def test_ragged_describes_a_split_array():
    rows = [np.ones((n, 4)) for n in (3, 0, 2)]
    ragged = Ragged(rows=3, trailing=4, total=5)
    assert ragged.data_elements == np.concatenate(rows).size
    assert ragged.offsets_elements == len(np.cumsum([0, *map(len, rows)]))
