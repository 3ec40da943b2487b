"""Every training example runs with tiny settings, learns, and writes what it says it writes."""

import gzip
import importlib.util
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx import train
from rlx.errors import FormatError

EXAMPLES = Path(__file__).parents[2] / "examples"
rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def beside_each_other(monkeypatch):
    """As when they are run: examples import what lies beside them."""
    monkeypatch.syspath_prepend(str(EXAMPLES))


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_picture(path):
    return path.read_bytes().startswith(b"\x89PNG")


def write_idx(path, array):
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes()))


@pytest.fixture
def digits(tmp_path):
    """Pictures that say what they are: digit d has a bright row 2·d."""
    for name, count in (("tiny", 60), ("test", 20)):
        labels = np.arange(count) % 10
        images = rng.integers(0, 40, (count, 28, 28))
        images[np.arange(count), 2 * labels + 3] = 255
        write_idx(tmp_path / f"{name}-images-idx3-ubyte.gz", images)
        write_idx(tmp_path / f"{name}-labels-idx1-ubyte.gz", labels)
    return tmp_path


def test_char_gpt_learns_resumes_and_writes(tmp_path, capsys):
    module = example("char_gpt")
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question. " * 60)
    sizes = {"length": 16, "layers": 1, "width": 32, "heads": 2, "batch": 4, "sample": 8, "rate": 0.01}
    options = ["--data", str(text), "--out", str(tmp_path / "run"), *(f"--{k}={v}" for k, v in sizes.items())]
    module.main([*options, "--steps", "20"])
    result = module.main([*options, "--steps", "30"])
    assert [row["step"] for row in result.history] == list(range(1, 31))
    assert result.history[-1]["loss"] < 0.8 * result.history[0]["loss"]
    assert "on text it has not seen" in capsys.readouterr().out
    assert (tmp_path / "run" / "loss.png").is_file()


def test_mnist_convnet_reads_rows(digits, capsys):
    module = example("mnist_convnet")
    options = ["--data", str(digits), "--train", "tiny", "--test", "test", "--batch", "20", "--epochs", "15"]
    assert module.main(options) > 0.5
    assert "of 20 test images are read right after 45 steps" in capsys.readouterr().out


def test_mnist_int8_makes_the_same_labels_in_integers(digits, capsys):
    module = example("mnist_int8")
    out = digits / "digits.rlxq"
    options = ["--data", str(digits), "--train", "tiny", "--test", "test", "--batch", "20", "--epochs", "15"]
    scores = module.main([*options, "--tune", "2", "--out", str(out)])
    assert scores["float"] > 0.5 and scores["8 bits"] >= scores["float"] - 0.1
    assert set(scores) == {"float", "8 bits", "4 bits", "4 bits, trained"}
    assert "labels from the file on the CPU are the same: True" in capsys.readouterr().out
    assert rlx.quantized.load(digits / "digits_int4.rlxq").steps[0].weights.bits == 4


@pytest.mark.parametrize("model", ["gru", pytest.param("transformer", marks=pytest.mark.long)])
def test_sequences_in_integers_are_as_good(model, digits):
    module, out = example("sequence_int8"), digits / "rows.rlxq"
    options = ["--data", str(digits), "--train", "tiny", "--test", "test", "--batch", "20", "--epochs", "12"]
    scores = module.main([*options, "--model", model, "--width", "16", "--out", str(out)])
    assert set(scores) == {"float", "int8", "int4 weights", "int16 values"}
    assert scores["int8"] >= scores["float"] - 0.1 and scores["int16 values"] >= scores["float"] - 0.1
    assert rlx.quantized.load(out).input.dims == (28, 1, 28)


def test_tinyconv_writes_a_file_for_each_width(digits, capsys):
    module = example("tinyconv")
    options = ["--data", str(digits), "--train", "tiny", "--test", "test", "--batch", "20", "--epochs", "4"]
    scores = module.main([*options, "--out", str(digits / "weights")])
    assert scores["8 bits"] >= scores["float, 8 bits"] - 0.1
    assert capsys.readouterr().out.count("labels from the file are the same: True") == 3
    sizes = {f.name: f.stat().st_size for f in (digits / "weights").iterdir()}
    assert sizes == {"tinyconv8.rlxm": 6456, "tinyconv4.rlxm": 3844, "tinyconv2.rlxm": 2538}


def test_vae_draws(digits):
    module = example("vae")
    out = digits / "run"
    options = ["--data", str(digits), "--train", "tiny", "--out", str(out), "--batch", "20", "--epochs", "10"]
    result = module.main(options)
    assert result.history[-1]["loss"] < 0.7 * result.history[0]["loss"]
    assert is_picture(out / "new_digits.png")


def test_diffusion_removes_noise_and_draws(digits):
    module = example("diffusion")
    out = digits / "run"
    options = ["--data", str(digits), "--train", "tiny", "--out", str(out), "--batch", "20", "--epochs", "15"]
    result = module.main(options)
    assert np.mean([r["loss"] for r in result.history[-10:]]) < 0.8 * result.history[0]["loss"]
    assert is_picture(out / "new_digits.png")


def test_pinn_has_third_derivatives_and_learns(tmp_path):
    module = example("pinn")
    x = np.linspace(0, 1, 5)

    def third(x):
        return module.along(lambda x: module.along(lambda x: module.along(rnp.sin, x)[1], x)[1], x)[1]

    np.testing.assert_allclose(np.asarray(third(x)), -np.cos(x), rtol=1e-12)
    assert module.main(["--steps", "60", "--points", "64", "--out", str(tmp_path)]) < 1.2
    assert is_picture(tmp_path / "wave.png")


def test_the_exact_wave_solves_the_equation():
    """With the soliton in the place of the network the residual of the example is 0."""
    module = example("pinn")

    def soliton(params, x, t):
        c = module.SPEED
        return c / 2 / rnp.cosh(np.sqrt(c) / 2 * (x - c * t)) ** 2

    module.wave = soliton
    x, t = rng.uniform(-3, 5, (2, 20))
    np.testing.assert_allclose(np.asarray(module.residual(None, x, t)), 0, atol=1e-9)


def test_neural_ode_follows_and_checkpoints_change_nothing(tmp_path):
    module = example("neural_ode")
    start = np.float64([[2.0, 0.0], [1.0, 1.0]])

    def total(start, kept):
        return rnp.sum(module.path(module.spiral, start, 9, 0.05, kept) ** 2)

    whole, parts = (np.asarray(rlx.grad(lambda y, k=k: total(y, k))(start)) for k in (0, 3))
    np.testing.assert_allclose(parts, whole, rtol=1e-12)
    assert module.main(["--steps", "200", "--length", "9", "--batch", "8", "--out", str(tmp_path)]) < 1.2
    assert is_picture(tmp_path / "path.png")


def test_forces_are_minus_the_slope_of_the_energy(tmp_path):
    """By central differences in f64; turning the cluster turns the forces; and it learns."""
    module = example("force_field")
    positions = module.clusters(0, 2)["positions"].astype("f8")
    _, forces = module.with_forces(module.lennard_jones)(positions)
    shift = np.zeros_like(positions)
    shift[:, 1, 2] = 1e-5
    higher, lower = (np.asarray(module.with_forces(module.lennard_jones)(positions + s)[0]) for s in (shift, -shift))
    np.testing.assert_allclose(np.asarray(forces)[:, 1, 2], (lower - higher) / 2e-5, rtol=1e-6, atol=1e-7)
    turn = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    _, turned = module.with_forces(module.lennard_jones)(positions @ turn)
    np.testing.assert_allclose(np.asarray(turned), np.asarray(forces) @ turn, rtol=1e-8, atol=1e-9)
    assert module.main(["--steps", "300", "--batch", "16", "--out", str(tmp_path)]) < 0.75
    assert is_picture(tmp_path / "forces.png")


def test_gaussian_process_finds_the_noise(tmp_path):
    found = example("gp_regression").main(["--steps", "120", "--points", "40", "--out", str(tmp_path)])
    assert is_picture(tmp_path / "curve.png")
    assert 0.1 < found["noise"] < 0.35 and 0.3 < found["length"] < 3


def test_broken_idx_files_are_refused(tmp_path):
    good = tmp_path / "good.gz"
    write_idx(good, np.arange(6).reshape(2, 3))
    np.testing.assert_array_equal(train.read_idx(good), np.arange(6).reshape(2, 3))
    whole = gzip.decompress(good.read_bytes())
    for content, message in (
        (whole[:-1], "need 18 bytes, the file has 17"),
        (whole[:7], r"2 axes of sizes \[\] need"),
        (b"PK\3\4", "an IDX file begins with 0, 0"),
        (b"", "an IDX file begins with"),
        (good.read_bytes()[:-9], "not a whole gzip file"),
    ):
        path = tmp_path / "bad"
        path.write_bytes(content)
        with pytest.raises(FormatError, match=message):
            train.read_idx(path)
    with pytest.raises(FormatError, match="no such file"):
        train.read_idx(tmp_path / "absent")


def test_finetune_lora_learns(tmp_path, capsys):
    pytest.importorskip("tokenizers")
    options = ["--out", str(tmp_path / "run"), "--targets", "v_proj", "--length=16", "--rate=0.02", "--steps=8"]
    with rlx.knobs(backend="reference"):
        result = example("finetune_lora").main(options)
    assert result.fit.history[-1]["loss"] < result.fit.history[0]["loss"]
    shown = capsys.readouterr().out
    assert "before: Jack and" in shown and "after: Jack and" in shown
    assert (tmp_path / "run" / "adapter_model.safetensors").is_file()


@pytest.mark.real
def test_a_sentence_encoder_learns_what_codes_mean(tmp_path, capsys):
    before, after = example("contrastive_minilm").main(["--steps=100", "--out", str(tmp_path / "tuned")])
    assert before < 0.3 and after > 0.9
    assert "100 steps" in capsys.readouterr().out and (tmp_path / "tuned" / "similarities.png").stat().st_size > 500
    assert (tmp_path / "tuned" / "adapter_model.safetensors").is_file()


@pytest.mark.parametrize("name", ["char_gpt", "mnist_convnet", "vae", "diffusion", "finetune_lora"])
def test_data_that_is_not_there_is_one_line(name, tmp_path):
    """As a command, from another folder; nothing is left behind."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--data", "absent.txt", "--out", "run"]
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parent / "src")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == "" and not list(tmp_path.iterdir())
    assert done.stderr.count("\n") == 1 and done.stderr.startswith(f"{name}.py: absent.txt")
    assert "there is no such f" in done.stderr


def test_names_of_files_that_are_there_are_told(digits):
    with pytest.raises(FormatError, match=r"no such file; the folder has test-images-idx3-ubyte\.gz, test-labels"):
        train.read_idx(digits / "train-images-idx3-ubyte.gz")
