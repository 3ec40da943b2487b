"""Layers and losses against PyTorch: the same weights give the same values and the same gradients, in f64."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import rlx  # noqa: E402
import rlx.numpy as rnp  # noqa: E402
from rlx import nn  # noqa: E402

pytestmark = pytest.mark.peers
rng = np.random.default_rng(4)


@pytest.fixture(autouse=True)
def gradients():
    """The engines of benchmarks switch them off for the whole process."""
    with torch.enable_grad():
        yield


def normal(*dims):
    return rng.standard_normal(dims)


def close(got, expected):
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=1e-9, atol=1e-10)


def agree(layer, params, module, x, weights):
    """Values, and gradients of a fixed sum with respect to x and to the weights that torch names."""
    tensor = torch.tensor(x, requires_grad=True)
    expected = module(tensor)
    direction = normal(*expected.shape)
    (expected * torch.tensor(direction)).sum().backward()

    def total(params, x):
        return rnp.sum(layer.apply(params, x) * direction)

    close(layer.apply(params, x), expected.detach())
    d_params, d_x = rlx.jit(rlx.grad(total, argnums=(0, 1)))(params, x)
    close(d_x, tensor.grad)
    for name, got in weights(d_params).items():
        wanted = dict(module.named_parameters())[name].grad.numpy()
        close(np.asarray(got), wanted)


@pytest.mark.parametrize(("make", "kind", "gates"), [(nn.lstm, "LSTM", 4), (nn.gru, "GRU", 3)])
def test_recurrent(make, kind, gates):
    size, width = 5, 3
    module = getattr(torch.nn, kind)(width, size, batch_first=True, dtype=torch.float64)
    own = {name: p.detach().numpy() for name, p in module.named_parameters()}
    params = {
        "wx": own["weight_ih_l0"].T,
        "wh": own["weight_hh_l0"].T,
        "bx": own["bias_ih_l0"],
        "bh": own["bias_hh_l0"],
    }
    assert params["wx"].shape == (width, gates * size)

    def names(g):
        return {
            "weight_ih_l0": np.asarray(g["wx"]).T,
            "weight_hh_l0": np.asarray(g["wh"]).T,
            "bias_ih_l0": g["bx"],
            "bias_hh_l0": g["bh"],
        }

    class First(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, x):
            return self.inner(x)[0]

    agree(make(size), params, First(), normal(2, 7, width), lambda g: {f"inner.{k}": v for k, v in names(g).items()})


@pytest.mark.parametrize("is_causal", [False, True])
def test_transformer_block(is_causal):
    """A block with layer norm before, and no biases, as torch's encoder layer with norm_first."""
    width, heads, hidden = 8, 2, 16
    module = torch.nn.TransformerEncoderLayer(
        width, heads, hidden, 0.0, "gelu", batch_first=True, norm_first=True, dtype=torch.float64, bias=False
    )
    own = {name: p.detach().numpy() for name, p in module.named_parameters()}
    q, k, v = (w.T for w in np.split(own["self_attn.in_proj_weight"], 3))
    zero = np.zeros(width)
    params = [
        [
            {"scale": own["norm1.weight"], "b": zero},
            {"q": {"w": q}, "k": {"w": k}, "v": {"w": v}, "out": {"w": own["self_attn.out_proj.weight"].T}},
        ],
        [
            {"scale": own["norm2.weight"], "b": zero},
            {"up": {"w": own["linear1.weight"].T}, "down": {"w": own["linear2.weight"].T}},
        ],
    ]
    layer = nn.transformer_block(heads, hidden, is_causal=is_causal)
    x = normal(2, 6, width)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64) if is_causal else None

    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, x):
            return self.inner(x, src_mask=mask, is_causal=is_causal)

    def names(g):
        return {
            "inner.linear1.weight": np.asarray(g[1][1]["up"]["w"]).T,
            "inner.linear2.weight": np.asarray(g[1][1]["down"]["w"]).T,
            "inner.self_attn.out_proj.weight": np.asarray(g[0][1]["out"]["w"]).T,
            "inner.norm1.weight": g[0][0]["scale"],
        }

    agree(layer, params, Masked(), x, names)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("blank", [0, 2])
def test_ctc(reduction, blank):
    batch, frames, classes = 4, 12, 6
    logits = normal(batch, frames, classes)
    labels = np.array([[1, 1, 3, 4], [5, 4, 3, 1], [3, 3, 3, 0], [1, 0, 0, 0]], np.int32)
    labels = np.where(labels == blank, 5, labels).astype(np.int32)
    frame_counts, label_counts = np.int32([12, 9, 8, 5]), np.int32([4, 4, 3, 1])
    tensor = torch.tensor(logits, requires_grad=True)
    logs = tensor.log_softmax(-1).transpose(0, 1)
    expected = torch.nn.functional.ctc_loss(
        logs, torch.tensor(labels), torch.tensor(frame_counts), torch.tensor(label_counts), blank, reduction
    )
    expected.sum().backward()

    def loss(x):
        return nn.ctc_loss(x, labels, frame_counts, label_counts, blank=blank, reduction=reduction)

    close(rlx.jit(loss)(logits), expected.detach())
    close(rlx.jit(rlx.grad(lambda x: rnp.sum(loss(x))))(logits), tensor.grad)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_with_ignored_rows(smoothing):
    logits, labels = normal(9, 5), np.int64([0, 4, -100, 2, 1, -100, 3, 3, 0])
    tensor = torch.tensor(logits, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(tensor, torch.tensor(labels), label_smoothing=smoothing)
    expected.backward()

    def loss(x):
        return nn.cross_entropy(x, labels, label_smoothing=smoothing)

    close(loss(logits), expected.detach())
    close(rlx.grad(loss)(logits), tensor.grad)
