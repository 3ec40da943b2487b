"""A character-level GPT, trained from scratch on any text file.

    python examples/char_gpt.py --data text.txt --steps 2000 --out run

Stop it at any time; the same command goes on where it stopped. Tokens are the bytes of the file, which is mapped.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import rlx
import rlx.numpy as rnp
from rlx import nn, optim, train

VOCAB = 256


def gpt(layers: int, width: int, heads: int, length: int) -> tuple[Any, Any]:
    """(init, logits) of a decoder with learned positions and the embedding as its last layer."""
    embedding = nn.embedding_layer(VOCAB, width)
    body = nn.chain(
        *(nn.transformer_block(heads, 4 * width, is_causal=True, dropout=0.1) for _ in range(layers)), nn.norm_layer()
    )

    def init(key: Any) -> dict[str, Any]:
        keys = rlx.random.split(key, 3)
        return {
            "tokens": embedding.init(keys[0], (1, length)),
            "places": rlx.random.normal(keys[1], (length, width)) * 0.02,
            "body": body.init(keys[2], (1, length, width)),
        }

    def logits(params: dict[str, Any], ids: Any, key: Any = None) -> Any:
        x = embedding.apply(params["tokens"], ids) + params["places"][: ids.shape[1]]
        return body.apply(params["body"], x, key) @ params["tokens"]["table"].T

    return init, logits


def sample(logits: Any, params: Any, prompt: bytes, count: int, length: int, seed: int = 0) -> str:
    """What may follow the prompt; the window always has `length` places, so that one program serves all of it."""

    @rlx.jit
    def choose(params: Any, window: Any, last: Any, key: Any) -> Any:
        row = rlx.dynamic_index_in_dim(logits(params, window[None])[0], last, 0, keepdims=False)
        return rlx.random.categorical(key, row / 0.8)

    ids = list(prompt)
    for n in range(count):
        recent = ids[-length:]
        window = np.zeros(length, np.int32)
        window[: len(recent)] = recent
        ids.append(int(choose(params, window, np.int32(len(recent) - 1), rlx.random.fold_in(rlx.random.key(seed), n))))
    return bytes(ids).decode("utf-8", errors="replace")


def main(argv: list[str] | None = None) -> train.FitResult:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a text file")
    parser.add_argument("--out", help="a folder for checkpoints, metrics and the loss curve")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--sample", type=int, default=300, help="how many characters to write at the end")
    args = parser.parse_args(argv)

    ids = train.open_tokens(args.data)
    split = len(ids) * 9 // 10
    batches = train.token_batches(ids[:split], args.batch, args.length)
    held_out = train.token_batches(ids[split:], args.batch, args.length)
    init, logits = gpt(args.layers, args.width, args.heads, args.length)

    def loss(params: Any, window: Any, key: Any) -> Any:
        return rnp.mean(nn.cross_entropy(logits(params, window[:, :-1], key), window[:, 1:]))

    @rlx.jit
    def held_out_loss(params: Any, window: Any) -> Any:
        return rnp.mean(nn.cross_entropy(logits(params, window[:, :-1]), window[:, 1:]))

    def evaluate(params: Any) -> float:
        count = min(held_out.steps_per_epoch, 10)
        return float(np.mean([float(held_out_loss(params, held_out(n))) for n in range(count)]))

    rate = optim.warmup_cosine(args.rate, args.steps // 20, args.steps, end=args.rate / 10)
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(rate, b2=0.95, weight_decay=0.1))
    result = train.fit(
        train.make_step(loss, optimizer),
        train.init_state(init(rlx.random.key(0)), optimizer),
        batches,
        args.steps,
        out=args.out,
        save_every=200,
        evaluate=evaluate,
        evaluate_every=200,
    )
    if result.history:
        print(f"loss {result.history[-1]['loss']:.3f}, on text it has not seen {result.history[-1].get('eval_loss')}")
    print(sample(logits, result.state.params, b"\n", args.sample, args.length))
    return result


if __name__ == "__main__":
    main()
