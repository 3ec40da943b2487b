"""Networks of torch whose exports `test_onnx_models` runs: what exporters write, with fixed and with open sizes."""

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    """Convolutions with batch norms, two ways that join, pooling to one vector."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.left = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.PReLU(16))
        self.right = nn.Conv2d(8, 16, 1, 2)
        self.squeeze = nn.Conv2d(16, 16, 1, groups=4)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = self.stem(x)
        x = F.hardswish(self.left(x) + self.right(x))
        x = x * F.hardsigmoid(self.squeeze(x.mean((2, 3), keepdim=True)))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1)), F.avg_pool2d(x, 3, 2, 1)


class Segmentation(nn.Module):
    """Down and up again: transposed convolutions, resizing in every mode, norms, padding, cropping."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up, self.again = nn.ConvTranspose2d(16, 8, 2, 2), nn.ConvTranspose2d(8, 8, 3, 2, 1, output_padding=1)
        self.groups, self.images = nn.GroupNorm(4, 16), nn.InstanceNorm2d(8, affine=True)

    def forward(self, x):
        a = F.silu(self.first(x))
        b = F.mish(self.groups(self.second(F.max_pool2d(a, 2))))
        up = self.images(self.up(b))
        half = F.interpolate(a[:, :, ::2, ::2], size=a.shape[2:], mode="bilinear", align_corners=False)
        c = F.pad(torch.cat([a, up, half], 1), (1, 1, 2, 2), mode="reflect")[:, :, 2:-2, 1:-1]
        d = F.interpolate(c, scale_factor=1.5, mode="bicubic")
        e = F.interpolate(c, scale_factor=2, mode="bilinear", align_corners=True)
        return self.again(up), F.interpolate(c, scale_factor=2, mode="nearest"), d, e


class Encoder(nn.Module):
    """Embeddings, a transformer with a mask of padding, mean pooling."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(100, 32), nn.Embedding(64, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu", dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids, mask):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))[None]
        x = self.layers(x, src_key_padding_mask=mask == 0)
        return F.normalize((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1), dim=-1)


class Decoder(nn.Module):
    """Causal attention, written out and as one function."""

    def __init__(self):
        super().__init__()
        self.words, self.norm = nn.Embedding(50, 32), nn.LayerNorm(32)
        self.split, self.out = nn.Linear(32, 96), nn.Linear(32, 50)

    def forward(self, ids):
        batch, time = ids.shape
        q, k, v = self.split(self.norm(self.words(ids))).view(batch, time, 3, 4, 8).permute(2, 0, 3, 1, 4)
        seen = torch.ones(time, time, dtype=torch.bool).tril()
        a = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(~seen, float("-inf")).softmax(-1) @ v
        b = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out((a + b).transpose(1, 2).reshape(batch, time, 32)).log_softmax(-1)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 12, 2, bidirectional=True, batch_first=True)
        self.gru, self.rnn = nn.GRU(24, 6), nn.RNN(6, 5)

    def forward(self, x):
        y, (h, c) = self.lstm(x)
        z, last = self.gru(y)
        w, end = self.rnn(z)
        return w, h, c, last, end


class Patches(nn.Module):
    """A vision transformer's first layer."""

    def __init__(self):
        super().__init__()
        self.cut, self.start = nn.Conv2d(3, 32, 8, 8), nn.Parameter(torch.randn(1, 1, 32))
        self.attention, self.norm = nn.MultiheadAttention(32, 4, batch_first=True), nn.LayerNorm(32)

    def forward(self, x):
        x = self.cut(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.start.expand(x.shape[0], -1, -1), x], 1)
        y = self.norm(x)
        return (x + self.attention(y, y, y)[0])[:, 0]


class Detector(nn.Module):
    """Boxes on a grid, and the ten best of them."""

    def __init__(self):
        super().__init__()
        self.features, self.head = nn.Conv2d(3, 8, 3, 4, 1), nn.Conv2d(8, 6, 1)

    def forward(self, x):
        y = self.head(F.relu(self.features(x)))
        rows, columns = torch.meshgrid(torch.arange(y.shape[2]), torch.arange(y.shape[3]), indexing="ij")
        y = y.flatten(2).transpose(1, 2)
        centre = y[..., :2].sigmoid() + torch.stack([columns, rows], -1).view(-1, 2).float()
        boxes = torch.cat([centre - y[..., 2:4].exp() / 2, centre + y[..., 2:4].exp() / 2], -1)
        scores, best = y[..., 4:].sigmoid().amax(-1).topk(10)
        return torch.gather(boxes, 1, best[..., None].expand(-1, -1, 4)), scores, best


class Chosen(nn.Module):
    """Rows that are chosen by value."""

    def forward(self, x):
        keep = x[:, 0] > 0
        return x[keep] * 2 + 1, torch.nonzero(keep)


def networks():
    """Name -> (module, inputs, which axes of which input are open)."""
    torch.manual_seed(0)
    image, ids = torch.randn(2, 3, 32, 48), torch.randint(0, 50, (2, 7))
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    open_image = {"x": {0: "batch", 2: "height", 3: "width"}}
    text = {0: "batch", 1: "time"}
    return {
        "residual": (Residual(), {"x": image}, open_image),
        "residual fixed": (Residual(), {"x": image}, {}),
        "segmentation": (Segmentation(), {"x": torch.randn(1, 1, 16, 24)}, open_image),
        "encoder": (Encoder(), {"ids": ids, "mask": mask}, {"ids": text, "mask": text}),
        "decoder": (Decoder(), {"ids": ids}, {"ids": text}),
        "recurrent": (Recurrent(), {"x": torch.randn(3, 7, 8)}, {"x": text}),
        "patches": (Patches(), {"x": torch.randn(2, 3, 32, 32)}, {"x": {0: "batch"}}),
        "detector": (Detector(), {"x": image}, open_image),
        "chosen": (Chosen(), {"x": torch.randn(9, 4)}, {"x": {0: "rows"}}),
    }
