"""Batches: every window once in an epoch, the same for the same step, clear errors, and the thread that makes them."""

import threading

import numpy as np
import pytest

from rlx import train
from rlx.errors import FormatError, OpError, ShapeError


def test_every_window_once_in_an_epoch_and_another_order_in_the_next():
    ids = np.arange(1003, dtype=np.uint16)
    batches = train.token_batches(ids, batch=4, length=10, seed=7)
    assert batches.steps_per_epoch == 25 and batches.tokens_per_batch == 40
    epochs = [[int(row[0]) for step in range(25 * e, 25 * e + 25) for row in batches(step)] for e in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(0, 1000, 10))
    assert epochs[0] != epochs[1] != sorted(epochs[1])
    first = batches(3)
    assert first.shape == (4, 11) and first.dtype == np.int32
    np.testing.assert_array_equal(first - first[:, :1], np.tile(np.arange(11), (4, 1)))
    np.testing.assert_array_equal(train.token_batches(ids, 4, 10, seed=7)(3), first)
    assert (train.token_batches(ids, 4, 10, seed=8)(3) != first).any()
    np.testing.assert_array_equal(train.token_batches(ids, 4, 10, seed=None)(1)[:, 0], [40, 50, 60, 70])


def test_files_are_mapped(tmp_path):
    ids = np.arange(100, dtype=np.uint16)
    np.save(tmp_path / "a.npy", ids)
    ids.tofile(tmp_path / "a.bin")
    (tmp_path / "a.txt").write_text("To be, or not to be")
    for name, dtype in (("a.npy", None), ("a.bin", "u2")):
        opened = train.open_tokens(tmp_path / name, dtype)
        assert isinstance(opened, np.memmap)
        np.testing.assert_array_equal(opened, ids)
    assert bytes(train.open_tokens(tmp_path / "a.txt")) == b"To be, or not to be"
    assert train.token_batches(tmp_path / "a.bin", 2, 7, dtype="u2")(0).shape == (2, 8)


def test_bad_files_are_refused(tmp_path):
    def write(name, content):
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    np.save(tmp_path / "matrix.npy", np.zeros((2, 3), "i4"))
    np.save(tmp_path / "floats.npy", np.zeros(3))
    for path, dtype, message in (
        (tmp_path / "absent", None, "there is no such file"),
        (tmp_path, None, "a file is needed; this is a directory"),
        (write("empty.txt", b""), None, "the file is empty"),
        (write("odd.bin", b"abc"), "u2", "3 bytes are not a whole number of uint16 tokens"),
        (write("not.npy", b"no"), None, "not a NumPy file"),
        (tmp_path / "matrix.npy", None, r"one row of integers, got int32\[2, 3\]"),
        (tmp_path / "floats.npy", None, "one row of integers, got float64"),
    ):
        with pytest.raises(FormatError, match=message):
            train.token_batches(path, 1, 1, dtype=dtype)
    for ids in (np.zeros((2, 3), "i4"), [0.5, 1.5]):
        with pytest.raises(FormatError, match="one row of integers, got"):
            train.token_batches(ids, 1, 1)
    np.testing.assert_array_equal(train.token_batches([5, 6, 7], 1, 2)(0), [[5, 6, 7]])
    with pytest.raises(FormatError, match="10 tokens are 2 windows of 4 and a target; a batch needs 3"):
        train.token_batches(np.arange(10), 3, 4)
    with pytest.raises(OpError, match="batch and length"):
        train.token_batches(np.arange(10), 0, 4)
    with pytest.raises(FormatError, match="token 9 at step 0 is not below the vocabulary's 9"):
        train.token_batches(np.arange(10), 1, 9, vocab=9)(0)


def test_rows_of_arrays():
    data = {"x": np.arange(20).reshape(10, 2), "y": [np.arange(10)]}
    batches = train.array_batches(data, 3)
    seen = []
    for step in range(batches.steps_per_epoch):
        batch = batches(step)
        np.testing.assert_array_equal(batch["x"][:, 0], 2 * batch["y"][0])
        seen.extend(batch["y"][0])
    assert len(seen) == len(set(seen)) == 9
    with pytest.raises(ShapeError, match=r"the same number of rows, got \[2, 3\]"):
        train.array_batches((np.zeros(2), np.zeros(3)), 1)
    for rows in ([1, 2], np.float32(3), {}):
        with pytest.raises(ShapeError, match="arrays with one row per example are needed"):
            train.array_batches(rows, 1)
    with pytest.raises(ShapeError, match="between 1 and the 4 rows, got 5"):
        train.array_batches(np.zeros(4), 5)


def test_prefetch_gives_all_in_order_and_ends_its_thread():
    before = threading.active_count()
    with train.Prefetch(lambda n: n * n, 3, 9) as made:
        assert list(made) == [(n, n * n) for n in range(3, 9)]
    with train.Prefetch(lambda n: n, 0, 10**9) as made:
        assert next(iter(made)) == (0, 0)
    assert threading.active_count() == before


def test_errors_of_the_thread_are_raised_where_they_belong():
    def broken(n):
        if n == 2:
            raise FormatError("bad line")
        return n

    seen = []
    with pytest.raises(FormatError, match="bad line"), train.Prefetch(broken, 0, 5) as made:
        seen.extend(n for n, _ in made)
    assert seen == [0, 1]
