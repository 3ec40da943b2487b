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

STEPS_A_TURN = 5
BATCH = 8


def tokens(length: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).integers(0, 256, (BATCH, length + 1)).astype(np.int32)


class OnRlx:
    """The character GPT as `rlx train` runs it, without dropout."""

    def __init__(self, options: argparse.Namespace, weights: Any) -> None:
        import rlx
        from rlx.distributed import layout_of
        from rlx.train.char_gpt import char_gpt_loss

        layout = layout_of(rlx.Mesh.of(options.mesh)) if options.mesh else None
        loss = char_gpt_loss(model_of(options), layout)
        optimizer = rlx.optim.adamw(1e-3, b2=0.95, weight_decay=0.1)
        step = rlx.train.make_step(lambda params, window: loss(params, window, None), optimizer)
        state = rlx.train.init_state(weights, optimizer)
        window = tokens(options.length)
        self.state, self.window = (layout.place_state(state), layout.place_batch(window)) if layout else (state, window)
        self.step = step

    def __call__(self) -> float:
        self.state, metrics = self.step(self.state, self.window)
        return float(metrics["loss"])


class OnJax:
    """The same arithmetic by jax.numpy and optax, with the shardings that rlx gives its own arrays."""

    def __init__(self, options: argparse.Namespace, weights: Any) -> None:
        import jax
        import jax.numpy as jnp
        import optax

        heads = options.heads

        def norm(p: Any, x: Any) -> Any:
            mean = x.mean(-1, keepdims=True)
            return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * p["scale"] + p["b"]

        def attention(p: Any, x: Any) -> Any:
            split = lambda name: (x @ p[name]["w"]).reshape(*x.shape[:2], heads, -1)  # noqa: E731
            mixed = jax.nn.dot_product_attention(split("q"), split("k"), split("v"), is_causal=True)
            return mixed.reshape(x.shape) @ p["out"]["w"]

        def loss(params: Any, window: Any) -> Any:
            ids, wanted = window[:, :-1], window[:, 1:]
            x = params["tokens"]["table"][ids] + params["places"]
            for attend, forward in params["body"][:-1]:
                x = x + attention(attend[1], norm(attend[0], x))
                inner = jax.nn.gelu(norm(forward[0], x) @ forward[1]["up"]["w"], approximate=False)
                x = x + inner @ forward[1]["down"]["w"]
            logits = norm(params["body"][-1], x) @ params["tokens"]["table"].T
            return optax.softmax_cross_entropy_with_integer_labels(logits, wanted).mean()

        optimizer = optax.adamw(1e-3, b2=0.95, weight_decay=0.1)

        def step(params: Any, state: Any, window: Any) -> Any:
            value, grads = jax.value_and_grad(loss)(params, window)
            updates, state = optimizer.update(grads, state, params)
            return optax.apply_updates(params, updates), state, value

        window = jnp.asarray(tokens(options.length))
        params = jax.tree.map(jnp.asarray, weights)
        if options.mesh:
            params, window = self.placed(options, params, window)
        state = jax.jit(optimizer.init)(params)
        self.step = jax.jit(step, donate_argnums=(0, 1))
        self.params, self.state, self.window = params, state, window

    def placed(self, options: argparse.Namespace, params: Any, window: Any) -> Any:
        import jax
        from jax.sharding import NamedSharding, PartitionSpec

        import rlx
        from rlx.distributed import layout_of

        own = rlx.Mesh.of(options.mesh)
        mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(tuple(own.shape.values())), own.axis_names)
        layout = layout_of(own)

        def theirs(value: Any, sharding: Any) -> Any:
            return jax.device_put(value, NamedSharding(mesh, PartitionSpec(*sharding.spec)))

        shardings = layout.params(jax.tree.map(np.asarray, params))
        return jax.tree.map(theirs, params, shardings), theirs(window, layout.batch(np.asarray(window)))

    def __call__(self) -> float:
        self.params, self.state, value = self.step(self.params, self.state, self.window)
        return float(value)


ENGINES = {"rlx": OnRlx, "jax": OnJax}


def model_of(options: argparse.Namespace) -> Any:
    from rlx.train.char_gpt import CharGpt

    return CharGpt(layers=options.layers, width=options.width, heads=options.heads, length=options.length)


def worker(name: str, options: argparse.Namespace) -> None:
    """First the seconds until the first loss, then a turn for each line on standard input."""
    import rlx

    weights = rlx.tree.map(np.asarray, model_of(options).init(rlx.random.key(0)))
    engine = ENGINES[name](options, weights)
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
    for name, size in {"layers": 6, "width": 384, "heads": 6, "length": 128, "rounds": 9}.items():
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
