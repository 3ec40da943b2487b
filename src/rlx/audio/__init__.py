"""Sound: spectra, mel features, resampling, filters and WAV files.

    wave = rlx.audio.read_wav("speech.wav")                    # samples f32[channels, frames] and their rate
    mono = rlx.audio.resample(wave.mono, wave.rate, 16000)
    features = rlx.jit(rlx.audio.whisper_log_mel)(mono)        # f32[80, frames // 160]

Signals are arrays or traced values with time on the last axis; any leading axes are carried along. All functions but
those of files work inside `rlx.jit`, `rlx.grad` and `rlx.vmap`. Sizes, windows and rates are Python values.
"""

# Each module lists its public names in __all__.
# ruff: noqa: F403

from rlx.audio.filter_design import *
from rlx.audio.fir import *
from rlx.audio.iir import *
from rlx.audio.mel import *
from rlx.audio.resampling import *
from rlx.audio.spectra import *
from rlx.audio.wav import *
from rlx.audio.windows import *
