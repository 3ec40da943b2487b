"""The models of `rlx pull`, which `make test-real` gets first."""

import hashlib

import numpy as np
import pytest

from rlx.errors import RlxError
from rlx.formats.gguf import open_gguf, write_gguf
from rlx.formats.safetensors import open_safetensors, write_safetensors
from rlx.models.pull import WHEEL_MODELS, locate

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True, scope="module")
def pulled():
    for name in WHEEL_MODELS:
        try:
            locate(name)
        except RlxError as error:
            pytest.skip(str(error))


@pytest.mark.parametrize("name", WHEEL_MODELS)
def test_the_files_are_the_pinned_ones(name):
    path = locate(name)
    folder = path.parent if path.is_file() else path
    for file in WHEEL_MODELS[name].files:
        assert hashlib.sha256((folder / file.name).read_bytes()).hexdigest() == file.sha256


@pytest.mark.parametrize("byte_order", ["little", "big"])
def test_a_copy_of_smollm2(byte_order, tmp_path):
    source = locate("smollm2")
    with open_gguf(source) as file:
        assert file.metadata["general.architecture"] == "llama" and len(file.tensors) == 272
        write_gguf(tmp_path / "copy", file.metadata, file.tensors, byte_order=byte_order)
        with open_gguf(tmp_path / "copy") as copy:
            for name, tensor in file.tensors.items():
                assert np.array_equal(copy.tensors[name].data(), tensor.data())
    if byte_order == "little":
        assert (tmp_path / "copy").read_bytes() == source.read_bytes()


def test_a_copy_of_minilm(tmp_path):
    with open_safetensors(locate("minilm")) as file:
        arrays = {name: tensor.array() for name, tensor in file.tensors.items()}
        write_safetensors(tmp_path / "copy", arrays, file.metadata)
        with open_safetensors(tmp_path / "copy") as copy:
            assert all(np.array_equal(copy.tensors[name].array(), values) for name, values in arrays.items())
