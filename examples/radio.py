"""Find an FM station in a band of noise and other signals, and listen to it.

    python examples/radio.py --out radio

One second of a band 1 MHz wide is made here: a station that plays a melody in FM, a weaker one in AM, a carrier and
noise. `rlx.rf.welch_peaks` finds the station without being told where it is; one compiled program mixes it down, keeps
its band, demodulates it and brings it to 44.1 kHz. Written are the sound (radio.wav) and a waterfall of the band
(radio.png): time runs down, frequency to the right, the station is the broad stripe.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from pictures import colours, write_png

import rlx
from rlx import audio, rf

RATE = 1_000_000
STATION, DEVIATION = 180_000, 75_000
SOUND_RATE = 44_100
# A, C sharp, E and A again, a quarter of a second each.
MELODY = (440.0, 554.37, 659.26, 880.0)

Array = np.ndarray[Any, np.dtype[Any]]


def melody() -> Array:
    """The sound that the station plays, at the rate of the band."""
    time = np.arange(RATE) / RATE
    tone = np.choose((time * len(MELODY)).astype(int), MELODY)
    swell = np.sin(np.pi * (time * len(MELODY) % 1.0)) ** 0.5
    return (0.7 * swell * np.sin(2 * np.pi * np.cumsum(tone) / RATE)).astype("f4")


def band(seed: int = 0) -> Array:
    """What an antenna would bring: c64[RATE]."""
    rng = np.random.default_rng(seed)
    time = np.arange(RATE) / RATE
    station = rf.mix(rf.fm_modulate(melody(), RATE, DEVIATION), STATION, RATE)
    speech = 0.5 * np.sin(2 * np.pi * 300 * time) * (np.sin(2 * np.pi * 3 * time) > 0)
    weaker = 0.1 * np.asarray(rf.mix(rf.am_modulate(speech.astype("f4")), -250_000, RATE))
    carrier = 0.05 * np.exp(-2j * np.pi * 80_000 * time)
    noise = 0.1 * (rng.standard_normal(RATE) + 1j * rng.standard_normal(RATE))
    return (np.asarray(station) + weaker + carrier + noise).astype("c8")


@rlx.jit
def find(iq: Any) -> Any:
    """The strongest stations, each some 150 kHz wide."""
    return rf.welch_peaks(iq, RATE, 3, 1024, width=150e3)


def listen(iq: Any, frequency: float) -> Any:
    """The sound of the station at `frequency`: 1 MHz to 250 kHz around it, demodulated, 44.1 kHz of sound."""
    near = audio.resample_poly(rf.mix(iq, -frequency, RATE), 1, 4)
    sound = rf.deemphasis(rf.fm_demodulate(near, RATE / 4, DEVIATION), RATE / 4)
    return audio.resample(sound, RATE // 4, SOUND_RATE)


def loudest_tones(sound: Array) -> list[float]:
    """The strongest frequency of each quarter, to compare with the melody."""
    quarters = sound[: len(sound) // 4 * 4].reshape(4, -1)
    density = np.asarray(rf.psd(quarters, SOUND_RATE, "hann"))
    return [float(f) for f in rf.frequencies(quarters.shape[1], SOUND_RATE, False)[density[:, :2000].argmax(-1)]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("radio"), help="files are called this, with .wav and .png")
    args = parser.parse_args()
    iq = band()
    found = find(iq)
    frequency = float(found.frequency[0])
    print(f"the strongest station is at {frequency / 1000:+.0f} kHz")
    sound = np.asarray(rlx.jit(lambda x: listen(x, frequency))(iq))
    print("it plays", ", ".join(f"{f:.0f} Hz" for f in loudest_tones(sound)))
    audio.write_wav(args.out.with_suffix(".wav"), 0.9 * sound / abs(sound).max(), SOUND_RATE)
    levels = np.asarray(rlx.jit(lambda x: rf.waterfall(x, RATE, 512, 4000))(iq))
    low, high = np.percentile(levels, [5, 99.8])
    write_png(args.out.with_suffix(".png"), colours((levels - low) / (high - low)))
    print(f"written: {args.out.with_suffix('.wav')}, {args.out.with_suffix('.png')}")


if __name__ == "__main__":
    main()
