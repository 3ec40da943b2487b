"""A small GPT trained on a made-up text: losses for a layout, or for one device."""

import numpy as np

import rlx
from rlx.distributed import layout_of
from rlx.train.char_gpt import CharGpt, char_gpt_loss


class ExpertGpt(CharGpt):
    """Experts in the place of the feed-forward layers."""

    @property
    def _body(self):
        experts = rlx.nn.moe(4, 2 * self.width)
        block = rlx.nn.transformer_block(self.heads, 4 * self.width, is_causal=True, inner=experts)
        return rlx.nn.chain(block, rlx.nn.norm_layer())


MODEL = CharGpt(layers=2, width=32, heads=4, length=16)


def batches(batch=8):
    text = np.frombuffer(b"the quick brown fox jumps over the lazy dog; " * 60, np.uint8)
    return rlx.train.token_batches(text, batch, MODEL.length)


EXPERTS = ExpertGpt(layers=1, width=32, heads=4, length=16)


def parts(layout=None, dropout=False, model=MODEL):
    """A step and its first state. Random numbers take XLA twenty seconds to compile, so most runs drop nothing."""
    loss = char_gpt_loss(model, layout)
    without = lambda params, window: loss(params, window, None)  # noqa: E731
    optimizer = rlx.optim.chain(rlx.optim.clip_by_global_norm(1.0), rlx.optim.adamw(3e-3, b2=0.95, weight_decay=0.1))
    step = rlx.train.make_step(loss if dropout else without, optimizer)
    state = rlx.train.init_state(model.init(rlx.random.key(0)), optimizer)
    return step, state


def losses(mesh=None, steps=20, dropout=False, model=MODEL):
    if mesh is None:
        step, state = parts(None, dropout, model)
        made = batches()
    else:
        layout = layout_of(rlx.Mesh.of(mesh))
        step, state = parts(layout, dropout, model)
        state, made = layout.place_state(state), layout.batches(batches())
    found = []
    for n in range(steps):
        state, metrics = step(state, made(n))
        found.append(float(metrics["loss"]))
    return found, state
