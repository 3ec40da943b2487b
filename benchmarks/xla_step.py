"""A step of training on `xla` against the same model written in JAX: compile time, step time, losses.

    python benchmarks/xla_step.py [--mesh data=4,tensor=2] [--layers 6] [--width 384] [--rounds 9] [--json FILE]

Both engines get the same first weights and the same tokens, each in a process of its own; they take turns of five
steps, and the medians of the turns are compared. Without a mesh there is one device. JAX and optax must be installed
beside rlx. Losses are compared first: over all steps they may differ by 1e-4.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

import numpy as np

from rlx.bench.training_programs import B2, DECAY, RATE, drawn

STEPS_A_TURN = 5


class OnRlx:
    """The network of `rlx bench train` on xla, by the layout of its mesh."""

    def __init__(self, options: argparse.Namespace) -> None:
        import rlx
        from rlx.bench.engines.training_rlx import gpt_loss
        from rlx.distributed import layout_of

        layout, plain = layout_of(rlx.Mesh.of(options.mesh)) if options.mesh else None, gpt_loss(options.heads)

        def loss(params: Any, batch: Any) -> Any:
            return plain(params, batch if layout is None else {**batch, "ids": layout.tokens(batch["ids"])})

        params, batch = drawn_values(options)
        optimizer = rlx.optim.adamw(RATE, b2=B2, weight_decay=DECAY)
        self.step = rlx.train.make_step(loss, optimizer)
        self.state, self.batch = rlx.train.init_state(params, optimizer), batch
        if layout:
            self.state, self.batch = layout.place_state(self.state), layout.place_batch(batch)

    def __call__(self) -> float:
        self.state, metrics = self.step(self.state, self.batch)
        return float(metrics["loss"])


class OnJax:
    """The same network in JAX and optax, with the shardings that rlx gives its own arrays."""

    def __init__(self, options: argparse.Namespace) -> None:
        import jax
        import jax.numpy as jnp
        import optax

        from rlx.bench.engines.training_jax import gpt_loss

        loss, optimizer = gpt_loss(options.heads), optax.adamw(RATE, b2=B2, weight_decay=DECAY)

        def step(params: Any, state: Any, batch: Any) -> Any:
            value, grads = jax.value_and_grad(loss)(params, batch)
            updates, state = optimizer.update(grads, state, params)
            return optax.apply_updates(params, updates), state, value

        params, batch = jax.tree.map(jnp.asarray, drawn_values(options))
        if options.mesh:
            params, batch = self.placed(options, params, batch)
        self.state = jax.jit(optimizer.init)(params)
        self.step = jax.jit(step, donate_argnums=(0, 1))
        self.params, self.batch = params, batch

    def placed(self, options: argparse.Namespace, params: Any, batch: Any) -> Any:
        import jax
        from jax.sharding import NamedSharding, PartitionSpec

        import rlx
        from rlx.distributed import layout_of

        own = rlx.Mesh.of(options.mesh)
        mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(tuple(own.shape.values())), own.axis_names)
        layout = layout_of(own)

        def theirs(value: Any, sharding: Any) -> Any:
            return jax.device_put(value, NamedSharding(mesh, PartitionSpec(*sharding.spec)))

        given = jax.tree.map(np.asarray, (params, batch))
        return jax.tree.map(theirs, params, layout.params(given[0])), jax.tree.map(
            theirs, batch, layout.batch(given[1])
        )

    def __call__(self) -> float:
        self.params, self.state, value = self.step(self.params, self.state, self.batch)
        return float(value)


ENGINES = {"rlx": OnRlx, "jax": OnJax}


def drawn_values(options: argparse.Namespace) -> Any:
    """First weights, and a batch."""
    sizes = {name: getattr(options, name) for name in ("layers", "width", "heads", "length", "batch")}
    values = drawn("gpt", {**sizes, "vocabulary": 256})
    return values["params"], {name: values[name] for name in ("ids", "labels")}


def worker(name: str, options: argparse.Namespace) -> None:
    """First the seconds until the first loss, then a turn for each line on standard input."""
    engine = ENGINES[name](options)
    started = time.perf_counter()
    first = engine()
    print(json.dumps({"compile": time.perf_counter() - started, "losses": [first]}), flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        losses = [engine() for _ in range(STEPS_A_TURN)]
        print(json.dumps({"step": (time.perf_counter() - started) / STEPS_A_TURN, "losses": losses}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mesh", help="axes and sizes, such as data=4,tensor=2 (default: one device)")
    for name, size in {"layers": 6, "width": 384, "heads": 6, "length": 128, "batch": 8, "rounds": 9}.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--json", help="write what was measured")
    parser.add_argument("--worker", choices=ENGINES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options)
        return
    count = int(np.prod([int(part.split("=")[1]) for part in options.mesh.split(",")])) if options.mesh else 1
    settings = {
        **os.environ,
        "RLX_BACKEND": "xla",
        "RLX_XLA_DEVICES": str(count),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={count}",
        "JAX_PLATFORMS": "cpu",
    }
    runs = {}
    told: dict[str, list[dict[str, Any]]] = {}
    for name in ENGINES:  # one compiles after the other
        command = [sys.executable, *sys.argv, "--worker", name]
        runs[name] = subprocess.Popen(command, env=settings, stdin=-1, stdout=-1, text=True)
        line = runs[name].stdout.readline()
        if not line:
            raise SystemExit(f"{name} ended before its first step")
        told[name] = [json.loads(line)]
    for turn in range(options.rounds):
        for name in list(ENGINES)[:: 1 if turn % 2 else -1]:
            run = runs[name]
            run.stdin.write("go\n")
            run.stdin.flush()
            told[name].append(json.loads(run.stdout.readline()))
    for run in runs.values():
        run.stdin.close()
        run.wait()
    losses = {name: np.array([value for turn in turns for value in turn["losses"]]) for name, turns in told.items()}
    apart = float(np.abs(losses["rlx"] - losses["jax"]).max())
    if not apart < 1e-4:
        raise SystemExit(f"losses differ by {apart:.2g}: {losses}")
    result = {
        name: {"compile": turns[0]["compile"], "step": float(np.median([t["step"] for t in turns[1:]]))}
        for name, turns in told.items()
    }
    print(f"losses over {len(losses['rlx'])} steps differ by at most {apart:.2g}")
    for name, found in result.items():
        print(f"{name}: first step with its compilation {found['compile']:.2f} s, a step {found['step'] * 1e3:.2f} ms")
    print(
        f"step {result['jax']['step'] / result['rlx']['step']:.2f}x JAX's speed, "
        f"compilation {result['rlx']['compile'] / result['jax']['compile']:.2f}x JAX's time"
    )
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"mesh": options.mesh, "apart": apart, **result}, file, indent=1)


if __name__ == "__main__":
    main()
