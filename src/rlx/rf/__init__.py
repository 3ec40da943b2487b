"""Radio: spectra of complex samples, demodulation, and filter banks.

    density = rlx.rf.welch(iq, rate, 1024)                          # power per Hz, [.., bins]
    found = rlx.rf.welch_peaks(iq, rate, 3, 1024)                   # the strongest stations
    sound = rlx.rf.fm_demodulate(rlx.rf.mix(iq, -100e3, rate), rate, 75e3)

Signals are complex baseband samples (IQ) with time on the last axis; any leading axes are carried along. Everything
works inside `rlx.jit`, `rlx.grad` and `rlx.vmap`. Filters are those of `rlx.audio`.
"""

# Each module lists its public names in __all__.
# ruff: noqa: F403

from rlx.rf.channels import *
from rlx.rf.demodulation import *
from rlx.rf.density import *
from rlx.rf.qam import *
