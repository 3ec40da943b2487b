"""Sound and maps beside other libraries: each engine in a process of its own, rounds in turn, medians.

    python benchmarks/signals.py audio            # log-mel, resampling, FIR, STFT beside librosa, transformers, SciPy
    python benchmarks/signals.py umap --count 10000 --rounds 1

Run it in an environment that has the peers. Results are compared before anything is timed. The map of 10,000 drawn
digits is judged by scikit-learn's trustworthiness; the first map of each engine is thrown away, since it compiles.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RATE, SECONDS = 16_000, 30
Work = dict[str, Callable[[], Any]]


def recording(rate: int = RATE) -> Any:
    """30 s of a gliding tone in noise."""
    t = np.arange(rate * SECONDS) / rate
    noise = np.random.default_rng(0).standard_normal(len(t))
    return (0.3 * np.sin(2 * np.pi * (200 + 50 * np.sin(t)) * t) + 0.05 * noise).astype(np.float32)


def taps() -> Any:
    """A low-pass filter of 255 taps."""
    from scipy.signal import firwin

    return firwin(255, 0.2).astype(np.float32)


def rlx_audio() -> Work:
    import rlx
    from rlx import audio

    x, wide, h = recording(), recording(48_000), taps()
    mel, fir = rlx.jit(audio.whisper_log_mel), rlx.jit(lambda x: audio.fir_filter(h, x))
    resample, stft = rlx.jit(lambda x: audio.resample_poly(x, 1, 3)), rlx.jit(lambda x: audio.stft(x, 1024, 256))
    return {
        "log-mel": lambda: mel(x),
        "resample 48 to 16 kHz": lambda: resample(wide),
        "FIR, 255 taps": lambda: fir(x),
        "STFT 1024 / 256": lambda: stft(x),
    }


def librosa_audio() -> Work:
    import librosa

    x = recording()

    def log_mel() -> Any:
        options = {"n_fft": 400, "hop_length": 160, "n_mels": 80, "pad_mode": "reflect"}
        v = np.log10(np.maximum(librosa.feature.melspectrogram(y=x, sr=RATE, **options)[:, :-1], 1e-10))
        return (np.maximum(v, v.max() - 8.0) + 4.0) / 4.0

    return {
        "log-mel": log_mel,
        "STFT 1024 / 256": lambda: librosa.stft(x, n_fft=1024, hop_length=256, pad_mode="reflect"),
    }


def transformers_audio() -> Work:
    from transformers import WhisperFeatureExtractor

    x, extractor = recording(), WhisperFeatureExtractor(feature_size=80)
    return {"log-mel": lambda: extractor(x, sampling_rate=RATE, return_tensors="np").input_features[0]}


def scipy_audio() -> Work:
    from scipy import signal

    x, wide, h = recording(), recording(48_000), taps()
    window = signal.get_window("hann", 1024).astype(np.float32)
    frames = signal.ShortTimeFFT(window, 256, RATE, phase_shift=None)

    def stft() -> Any:
        # The same frames as librosa's: centred, the signal mirrored at its ends.
        return frames.stft(np.pad(x, 512, mode="reflect"), p0=2, p1=2 + 1 + len(x) // 256)

    return {
        "resample 48 to 16 kHz": lambda: signal.resample_poly(wide, 1, 3),
        "FIR, 255 taps": lambda: signal.oaconvolve(x, h)[: len(x)],
        "FIR, 255 taps (lfilter)": lambda: signal.lfilter(h, np.float32(1), x),
        "STFT 1024 / 256": stft,
    }


def digits(count: int) -> Any:
    sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
    import umap_digits

    return umap_digits.drawn_digits(count)[0], umap_digits


def rlx_umap(count: int) -> Work:
    x, example = digits(count)
    return {"UMAP": lambda: example.embed(x)}


def peer_umap(count: int) -> Work:
    import umap

    x, _ = digits(count)
    return {"UMAP": lambda: umap.UMAP(n_neighbors=15, n_jobs=-1).fit_transform(x)}


ENGINES: dict[str, dict[str, Callable[..., Work]]] = {
    "audio": {"rlx": rlx_audio, "librosa": librosa_audio, "transformers": transformers_audio, "SciPy": scipy_audio},
    "umap": {"rlx": rlx_umap, "umap-learn": peer_umap},
}


def serve(connection: Any, suite: str, engine: str, options: dict[str, int]) -> None:
    """An engine's process: tells what it can do, then does what it is told, and for how long."""
    work = ENGINES[suite][engine](**options)
    connection.send(list(work))
    while (name := connection.recv()) is not None:
        start, cpu = time.perf_counter(), time.process_time()
        result = work[name]()
        elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu
        connection.send((elapsed, np.asarray(result), cpu))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=ENGINES)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--keep", type=Path, help="write the maps to this .npz file instead of judging them")
    args = parser.parse_args()
    options = {"count": args.count} if args.suite == "umap" else {}
    context = multiprocessing.get_context("spawn")
    engines: dict[str, tuple[Any, list[str]]] = {}
    for name in ENGINES[args.suite]:
        here, there = context.Pipe()
        context.Process(target=serve, args=(there, args.suite, name, options), daemon=True).start()
        engines[name] = here, here.recv()

    def ask(engine: str, work: str) -> tuple[float, Any, float]:
        engines[engine][0].send(work)
        return engines[engine][0].recv()

    for work in dict.fromkeys(w for _, works in engines.values() for w in works):
        able = [name for name, (_, works) in engines.items() if work in works]
        first = {name: ask(name, work) for name in able}
        times, cpu = ({name: [] for name in able} for _ in range(2))
        for _ in range(args.rounds):
            for name in able:
                elapsed, _, used = ask(name, work)
                times[name].append(elapsed)
                cpu[name].append(used)
        middle = {name: statistics.median(t) for name, t in times.items()}
        for name in able:
            used = statistics.median(cpu[name])
            line = f"{work:26} {name:14} {middle[name] * 1e3:10.2f} ms, processors {used * 1e3:.2f} ms"
            if args.suite == "umap":
                line += f"; the first, cold, took {first[name][0]:.1f} s"
            elif "rlx" in first and name != "rlx":
                ours, theirs = first["rlx"][1], first[name][1]
                ours = ours[..., : theirs.shape[-1]]
                far = np.abs(ours - theirs) / max(1.0, float(np.abs(theirs).max()))
                line += f"  rlx {middle[name] / middle['rlx']:.2f}x as fast; differs by {far.max():.1e}"
                line += f", {np.mean(far > 1e-5):.1e} of it by more than 1e-5"
            print(line, flush=True)
    for connection, _ in engines.values():
        connection.send(None)
    if args.suite == "umap" and args.keep:
        np.savez(args.keep, **{name: found for name, (_, found, _) in first.items()})
    elif args.suite == "umap":
        for name, (_, found, _) in first.items():
            print(f"{name:14} trustworthiness {judged(found, args.count):.4f}")


def judged(y: Any, count: int) -> float:
    from sklearn.manifold import trustworthiness

    return float(trustworthiness(digits(count)[0], y, n_neighbors=15))


if __name__ == "__main__":
    main()
