"""A thousand damaged files of every kind: a clear error or a valid result, never another exception, nor much memory."""

import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from test_colmap import binary_model
from test_scene_files import random_scene

from rlx.errors import RlxError
from rlx.splat import read_colmap, read_png, read_scene, write_png, write_scene, write_synthetic
from rlx.splat.adam import AdamState
from rlx.splat.checkpoint import Checkpoint, read_checkpoint, write_checkpoint

MUTANTS = 1000
# What reading any of these small files may take at once.
MOST_BYTES = 64 << 20


def mutated(content, rng):
    """Bytes changed, cut off, doubled, or replaced by large numbers."""
    data = bytearray(content)
    match rng.integers(5):
        case 0:
            for at in rng.integers(0, len(data), rng.integers(1, 8)):
                data[at] = rng.integers(256)
        case 1:
            del data[rng.integers(len(data)) :]
        case 2:
            start, stop = sorted(rng.integers(0, len(data), 2))
            data[start:start] = data[start:stop]
        case 3:
            at = rng.integers(0, max(len(data) - 8, 1))
            data[at : at + 8] = struct.pack("<Q", int(rng.choice([2**63, 2**40, 2**32 - 1, 2**31, 10**6])))
        case 4:
            digits = [i for i, c in enumerate(data[:2000]) if chr(c).isdigit()]
            for at in rng.choice(digits, min(3, len(digits)), replace=False) if digits else ():
                data[at : at + 1] = str(rng.choice(["-1", "9999999", "nan", "1e400", "x", ""])).encode()
    return bytes(data)


def png_with_right_sums(content, rng):
    """A PNG whose chunks are changed but whose check sums are right, so that what is inside is looked at."""
    at, out = 8, content[:8]
    while at + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, at)
        kind, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        if data and rng.integers(3) == 0:
            data = mutated(data, rng)
        out += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        at += 12 + length
    return out


def survives(read, path):
    """Whether reading ends with a result; errors of rlx are fine, others are not."""
    tracemalloc.start()
    try:
        read(path)
        return True
    except RlxError as error:
        assert str(error)
        return False
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MOST_BYTES, f"{peak} bytes"


def check_mutants(read, originals, path, count, mutate=mutated):
    rng = np.random.default_rng(0)
    results = []
    for number in range(count):
        path.write_bytes(mutate(originals[number % len(originals)], rng))
        results.append(survives(read, path))
    assert not all(results), "no mutant was refused: nothing is checked"


def test_scenes(tmp_path):
    paths = [tmp_path / f"{i}.ply" for i in range(3)]
    write_scene(paths[0], random_scene(40, 0))
    write_scene(paths[1], random_scene(300, 1), compressed=True)
    lines = ["ply", "format ascii 1.0", "element vertex 2"]
    names = [*"xyz", "f_dc_0", "f_dc_1", "f_dc_2", "opacity", *(f"scale_{i}" for i in range(3))]
    lines += [f"property float {p}" for p in [*names, *(f"rot_{i}" for i in range(4))]]
    paths[2].write_text("\n".join([*lines, "end_header", "1 " * 14, "2 " * 14, ""]))
    check_mutants(read_scene, [p.read_bytes() for p in paths], tmp_path / "mutant.ply", MUTANTS)


def test_models(tmp_path):
    text, binary = tmp_path / "text", tmp_path / "binary"
    write_synthetic(text, views=2, width=16, height=12, splats=40, points=10)
    binary_model(binary)
    for folder, names in ((text / "sparse" / "0", "txt"), (binary, "bin")):
        for kind in ("cameras", "images", "points3D"):
            path = folder / f"{kind}.{names}"
            original = path.read_bytes()
            check_mutants(lambda _, folder=folder: read_colmap(folder), [original], path, MUTANTS // 6)
            path.write_bytes(original)


@pytest.mark.parametrize("mutate", [mutated, png_with_right_sums])
def test_pictures(tmp_path, mutate):
    rng = np.random.default_rng(0)
    write_png(tmp_path / "a.png", rng.integers(0, 256, (20, 30, 3), dtype=np.uint8))
    original = (tmp_path / "a.png").read_bytes()
    check_mutants(read_png, [original], tmp_path / "b.png", MUTANTS // 4, mutate)


def test_checkpoints(tmp_path):
    scene = random_scene(20, 0)
    write_checkpoint(tmp_path / "a.npz", Checkpoint(3, scene, AdamState.zeros(scene), 0))
    original = (tmp_path / "a.npz").read_bytes()
    check_mutants(read_checkpoint, [original], tmp_path / "b.npz", 100)
