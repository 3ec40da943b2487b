"""Sorting, the largest of many, sampling, sums along an axis, and selective scans: rlx, and torch.

What is drawn differs from engine to engine, so that samples are only looked at for being in range.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.bench.programs import Array, Sizes

# Of the largest, how many; and of logits, for how many tokens of a vocabulary.
LARGEST = 50


def operands_of(program: str, sizes: Sizes) -> list[Array]:
    rng = np.random.default_rng(7)
    if program != "selective scan":
        return [rng.normal(size=(sizes["rows"], sizes["width"])).astype("f4")]
    batch, steps, channels, states = (sizes[n] for n in ("batch", "steps", "channels", "states"))
    x, enter, leave = (rng.normal(size=(batch, steps, n)).astype("f4") for n in (channels, states, states))
    delta = rng.uniform(0.001, 0.1, (batch, steps, channels)).astype("f4")
    decay = -np.tile(np.arange(1, states + 1, dtype="f4"), (channels, 1))
    return [x, delta, decay, enter, leave]


def _in_range(ids: Array, limit: int) -> Array:
    """1 for each id that there is."""
    return ((ids >= 0) & (ids < limit)).astype(np.float64)


class RlxScans:
    _check: Callable[[Any], Array]

    def __init__(self, threads: int) -> None:
        import rlx
        from rlx.knobs import knobs

        knobs.set(threads=threads)
        self.version = rlx.__version__

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        import rlx
        import rlx.numpy as rnp
        from rlx import ops

        operands = operands_of(program, sizes)
        functions: dict[str, Callable[..., Any]] = {
            "sort": lambda x: rnp.sort(x, -1),
            "top-k": lambda x: rlx.lax.top_k(x, LARGEST)[0],
            "sampling": lambda x, key: rlx.random.categorical(key, x),
            "cumsum": lambda x: rnp.cumsum(x, -1),
            "selective scan": lambda x, step, decay, b, c: ops.selective_scan(x, step, decay, b, c, sizes["states"]),
        }
        if program == "sampling":
            operands.append(np.asarray(rlx.random.key(0)))
            limit = sizes["width"]
            self._check = lambda result: _in_range(np.asarray(result), limit)
        else:
            self._check = lambda result: np.asarray(result)
        call = rlx.jit(functions[program])
        return lambda: call(*operands)

    def as_numpy(self, result: Any) -> Array:
        return np.asarray(self._check(result))


class TorchScans:
    """Selective scans step by step: rates and inputs of many steps at once, then one fused multiply-add for each."""

    steps_at_once = 64
    _check: Callable[[Any], Array]

    def __init__(self, threads: int) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._torch.set_num_threads(threads)
        self._torch.set_grad_enabled(False)
        self.version = str(self._torch.__version__)

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        torch = self._torch
        operands = [torch.from_numpy(x) for x in operands_of(program, sizes)]
        functions: dict[str, Callable[..., Any]] = {
            "sort": lambda x: torch.sort(x, -1)[0],
            "top-k": lambda x: torch.topk(x, LARGEST, -1)[0],
            "sampling": lambda x: torch.multinomial(torch.softmax(x, -1), 1)[:, 0],
            "cumsum": lambda x: torch.cumsum(x, -1),
            "selective scan": self._selective_scan,
        }
        limit = sizes.get("width", 0)
        is_sample = program == "sampling"
        self._check = (lambda r: _in_range(r.numpy(), limit)) if is_sample else lambda r: r.numpy()
        call = functions[program]
        return lambda: call(*operands)

    def _selective_scan(self, x: Any, delta: Any, decay: Any, enter: Any, leave: Any) -> Any:
        torch = self._torch
        state = torch.zeros(x.shape[0], x.shape[2], decay.shape[1])
        found = []
        for start in range(0, x.shape[1], self.steps_at_once):
            part = slice(start, start + self.steps_at_once)
            step = delta[:, part, :, None]
            kept = torch.exp(step * decay)
            added = (step * x[:, part, :, None]) * enter[:, part, None, :]
            states = []
            for t in range(kept.shape[1]):
                state = torch.addcmul(added[:, t], kept[:, t], state)
                states.append(state)
            found.append(torch.einsum("bshn,bsn->bsh", torch.stack(states, 1), leave[:, part]))
        return torch.cat(found, 1)

    def as_numpy(self, result: Any) -> Array:
        return np.asarray(self._check(result))


class TorchStepScans(TorchScans):
    """One step after the other, without anything made before."""

    def _selective_scan(self, x: Any, delta: Any, decay: Any, enter: Any, leave: Any) -> Any:
        torch = self._torch
        state = torch.zeros(x.shape[0], x.shape[2], decay.shape[1])
        found = []
        for t in range(x.shape[1]):
            step = delta[:, t, :, None]
            state = torch.addcmul((step * x[:, t, :, None]) * enter[:, t, None, :], torch.exp(step * decay), state)
            found.append((state * leave[:, t, None, :]).sum(-1))
        return torch.stack(found, 1)
