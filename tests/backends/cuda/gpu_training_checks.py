"""Training on a GPU, for `gpu_suite.py`: whole steps against the CPU engine and against torch.

Every check takes the device that it runs on, so that tests can run it on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gpt2_training import DECAY, RATE, Gpt2, torch_step

import rlx
from rlx import optim, train

SMALL = Gpt2(layers=2, width=128, heads=2, length=64, vocabulary=96, batch=8)
# Batches that are seen again and again: the network learns them by heart.
BATCHES = 4
STEPS = 200


def batches(model: Gpt2, device: str) -> list[Any]:
    return [placed(model.text(seed), device) for seed in range(BATCHES)]


def placed(values: Any, device: str) -> Any:
    return values if device == "cpu" else rlx.device_put(values, device)


def curve(
    device: str, steps: int, model: Gpt2 = SMALL, optimizer: Any = None, **options: Any
) -> tuple[list[dict[str, float]], Any]:
    """Metrics of all steps, and the last state."""
    optimizer = optimizer or optim.adamw(RATE, weight_decay=DECAY)
    step = train.make_step(model.loss, optimizer, **options)
    state = placed(train.init_state(model.drawn(), optimizer, loss_scale=options.get("loss_scale")), device)
    seen, found = batches(model, device), []
    for number in range(steps):
        state, metrics = step(state, seen[number % BATCHES])
        found.append({name: float(np.asarray(value)) for name, value in metrics.items()})
    return found, state


def losses(metrics: list[dict[str, float]]) -> Any:
    return np.array([m["loss"] for m in metrics])


def bits(state: Any) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in rlx.tree.leaves(state)]


def f32_curve(device: str = "cuda", steps: int = STEPS) -> float:
    """f32 on the GPU and on the host: the same sums in another order, which grow apart slowly."""
    ours, want = (losses(curve(d, steps)[0]) for d in (device, "cpu"))
    assert want[-1] < want[0], "nothing is learned"
    error = float(np.abs(ours - want).max())
    assert error <= 1e-2, f"the curves are {error:.2g} apart"
    return error


def bf16_curve(device: str = "cuda", steps: int = STEPS, peer: Callable[[], Any] | None = None) -> float:
    """bf16 is never further from the f32 curve of the host than twice as far as torch's bf16 is."""
    want = losses(curve("cpu", steps)[0])
    ours = losses(curve(device, steps, precision="bf16")[0])
    run = peer or torch_step(SMALL, compiled=False)
    theirs = np.array([float(run(SMALL.text(number % BATCHES))) for number in range(steps)])
    mine, other = (float(np.abs(x - want).max()) for x in (ours, theirs))
    assert mine <= 2 * other, f"{mine:.3g} from the f32 curve, torch {other:.3g}"
    return mine


def deterministic(device: str = "cuda", steps: int = 20) -> float:
    """The same steps give the same bits, also by a program that was made anew; and by one recorded graph."""
    states = [bits(curve(device, steps, precision="bf16")[1]) for _ in range(3)]
    assert states[0] == states[1] == states[2], "runs differ"
    return 0.0


def one_graph(device: str = "cuda", steps: int = 6) -> float:
    """Forward, backward and update are one recorded graph, which is launched again and again."""
    from rlx.backends.cuda import streams

    launched: list[int] = []
    launch = streams.GraphExec.launch

    def counted(self: Any, stream: Any) -> None:
        launched.append(id(self))
        launch(self, stream)

    streams.GraphExec.launch = counted  # type: ignore[method-assign]
    try:
        curve(device, steps, precision="bf16")
    finally:
        streams.GraphExec.launch = launch  # type: ignore[method-assign]
    assert len(launched) >= steps - 3, f"{len(launched)} of {steps} steps were launched as a graph"
    return 0.0


def accumulation(device: str = "cuda", steps: int = 12) -> float:
    """Gradients of four steps are added up before an update, as on the host."""
    results = []
    for where in (device, "cpu"):
        optimizer = optim.accumulate(optim.adamw(RATE, weight_decay=DECAY), BATCHES)
        results.append(curve(where, steps, optimizer=optimizer))
    (ours, state), (want, wanted) = results
    error = float(np.abs(losses(ours) - losses(want)).max())
    assert error <= 1e-3, f"losses are {error:.2g} apart"
    for a, b in zip(rlx.tree.leaves(state.params), rlx.tree.leaves(wanted.params), strict=True):
        assert np.abs(np.asarray(a) - np.asarray(b)).max() <= 3 * RATE, "parameters differ"
    return error


def loss_scaling(device: str = "cuda", steps: int = 12) -> float:
    """f16 with a scale that begins too high: steps that overflow change nothing but the scale, as on the host."""
    scale = train.DynamicScale(initial=2.0**24, growth_interval=4)
    (ours, _), (want, _) = (curve(d, steps, precision="f16", loss_scale=scale) for d in (device, "cpu"))
    skipped = [[m["skipped"] for m in found] for found in (ours, want)]
    scales = [[m["loss_scale"] for m in found] for found in (ours, want)]
    assert any(skipped[0]) and not all(skipped[0]), "no step was skipped, or all were"
    assert skipped[0] == skipped[1] and scales[0] == scales[1], f"{scales[0]} on {device}, {scales[1]} on the host"
    error = float(np.abs(losses(ours) - losses(want)).max())
    assert error <= 2e-2, f"losses are {error:.2g} apart"
    return error


def recomputation(device: str = "cuda", steps: int = 3) -> float:
    """With a limit on the bytes of a step blocks compute their values again: fewer bytes, the same losses."""
    model = SMALL._replace(layers=4, batch=32)
    optimizer = optim.adamw(RATE, weight_decay=DECAY)
    state = placed(train.init_state(model.drawn(), optimizer), device)
    batch = placed(model.text(), device)
    plan = train.make_step(model.loss, optimizer, precision="bf16").plan(state, batch)
    # The host's kernels keep little that could be computed again.
    limit = plan.argument_bytes + int(plan.arena_bytes * (0.9 if device == "cpu" else 0.6))
    step = train.make_step(model.loss, optimizer, precision="bf16", memory=limit)
    fewer = step.plan(state, batch)
    assert 0 < fewer.recomputed <= fewer.blocks and fewer.total_bytes <= limit < plan.total_bytes, f"{plan}; {fewer}"
    ours, want = (losses(curve(device, steps, model, precision="bf16", memory=m)[0]) for m in (limit, None))
    error = float(np.abs(ours - want).max())
    assert error <= 1e-3, f"losses are {error:.2g} apart"
    return error


def lora(device: str = "cuda", steps: int = 10) -> float:
    """Adapters over the stored blocks of a GGUF model, as on the host; the blocks stay as they are."""
    from rlx.finetune import AdapterConfig, causal_loss, trainable_decoder
    from rlx.models import language_model
    from rlx.models.model_files import open_decoder

    path = Path(language_model.__file__).parent / "data" / "tiny.gguf"
    model = trainable_decoder(open_decoder(path), AdapterConfig(rank=4))
    ids = np.random.default_rng(0).integers(3, 60, (2, 33), dtype=np.int32)
    found = []
    for where in (device, "cpu"):
        optimizer = optim.adamw(1e-2, weight_decay=0.0)
        step = train.make_step(causal_loss(model), optimizer)
        state = placed(train.init_state(model.params, optimizer), where)
        batch = {"tokens": ids[:, :-1].copy(), "labels": ids[:, 1:].copy(), "frozen": model.frozen}
        batch, curve_found = placed(batch, where), []
        for _ in range(steps):
            state, metrics = step(state, batch)
            curve_found.append(float(np.asarray(metrics["loss"])))
        found.append(np.array(curve_found))
    ours, want = found
    assert want[-1] < want[0] - 0.1, "nothing is learned"
    error = float(np.abs(ours - want).max())
    assert error <= 1e-2, f"losses are {error:.2g} apart"
    return error


CHECKS: dict[str, Callable[..., float]] = {
    check.__name__: check
    for check in (
        f32_curve,
        bf16_curve,
        deterministic,
        one_graph,
        accumulation,
        loss_scaling,
        recomputation,
        lora,
    )
}
