"""A small training run that tests start, kill and resume: `python small_run.py FOLDER STEPS PAUSE`."""

from __future__ import annotations

import sys
import time

import numpy as np

import rlx
import rlx.numpy as rnp
from rlx import optim, train


def loss(params, batch, key):
    hidden = rnp.tanh(batch["x"] @ params["w1"] + params["b1"])
    hidden = rlx.nn.dropout(hidden, 0.2, key)
    return rnp.mean((hidden @ params["w2"] - batch["y"]) ** 2)


def parts():
    rng = np.random.default_rng(0)
    params = {
        "w1": rng.standard_normal((5, 16)).astype("f4") * 0.4,
        "b1": np.zeros(16, "f4"),
        "w2": rng.standard_normal((16, 2)).astype("f4") * 0.2,
    }
    x = rng.standard_normal((70, 5)).astype("f4")
    y = np.stack([np.sin(x[:, 0]), x[:, 1] * x[:, 2]], 1).astype("f4")
    optimizer = optim.chain(
        optim.clip_by_global_norm(1.0), optim.adamw(optim.warmup_cosine(0.02, 5, 60), weight_decay=0.01)
    )
    step = train.make_step(loss, optimizer)
    state = train.init_state(params, optimizer, seed=3)
    return step, state, train.array_batches({"x": x, "y": y}, batch=16, seed=1)


def run(folder, steps, pause=0.0, **options):
    step, state, batches = parts()
    wait = (lambda report: time.sleep(pause)) if pause else (lambda report: None)
    return train.fit(step, state, batches, steps, out=folder, save_every=4, callbacks=[wait], **options)


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
