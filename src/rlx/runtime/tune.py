"""Measure the parameter sets that schedules offer for the kernels of a program, and keep the winners.

    tune(lambda: rlx.Session("cpu").compile(graph), measure)

`build()` compiles the program anew. A set is tried for all kernels at once, one compile for each set and not for each
kernel and set, because kernels do not depend on each other. `measure(program)` gives the seconds of every kernel of its
report. A set wins over the usual one if it is faster by more than the noise of a measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from rlx.backends.native.object_cache import whole_file
from rlx.errors import FormatError
from rlx.kernels.machines import Machine, host
from rlx.kernels.tunable import Site, shown, sites
from rlx.kernels.tuning import Parameters, document, read_document, shipped, trying, tuned_file
from rlx.runtime.compile_cache import clear_compile_cache

# A set that is faster by less may be no better at all.
NOISE = 0.03


class Reported(Protocol):
    """A compiled program or model."""

    @property
    def report(self) -> Any: ...


class Winner(NamedTuple):
    """What was found for a kernel: its best set, and the seconds with it and with the usual one."""

    site: Site
    best: Parameters
    seconds: float
    usual_seconds: float
    tried: tuple[float, ...] = ()  # the seconds with each set

    @property
    def is_usual(self) -> bool:
        return self.best == self.site.sets[0]

    def __str__(self) -> str:
        gain = self.usual_seconds / self.seconds if self.seconds else 1.0
        said = "as usual" if self.is_usual else f"{gain:.2f}x with {shown(self.best)}"
        return f"{self.site.schedule} {self.site.signature.split(' ')[0]}: {said}"


def tune(
    build: Callable[[], Reported],
    measure: Callable[[Any], Sequence[float]],
    machine: Machine | None = None,
    said: Callable[[str], None] = lambda text: None,
) -> list[Winner]:
    """The best set for every kernel of a program that has several, equal kernels once."""
    tried: dict[str, dict[int, float]] = {}
    by_key: dict[str, Site] = {}
    number, most = 0, 1
    while number < most:
        picks: dict[str, Mapping[str, int]] = {
            key: site.sets[number]._asdict() for key, site in by_key.items() if number < len(site.sets)
        }
        clear_compile_cache()
        with trying(picks):
            program = build()
            places = sites(program.report.lir, machine)
            by_key = by_key or {site.key: site for site in places.values()}
            most = max((len(site.sets) for site in by_key.values()), default=0)
            if most:
                said(f"set {number + 1} of {most}")
                seconds = measure(program)
        for place, site in places.items():
            if number < len(site.sets):
                times = tried.setdefault(site.key, {})
                times[number] = times.get(number, 0.0) + seconds[place]
        number += 1
    clear_compile_cache()
    return [_winner(site, tried[key]) for key, site in by_key.items()]


def _winner(site: Site, times: Mapping[int, float]) -> Winner:
    best = min(times, key=lambda number: times[number])
    if times[best] > (1 - NOISE) * times[0]:
        best = 0
    return Winner(site, site.sets[best], times[best], times[0], tuple(times[n] for n in sorted(times)))


def keep(winners: Sequence[Winner], machine: Machine | None = None) -> int:
    """Write winners down beside those that are kept already, and say how many are not the usual set; kernels for which
    the usual set is best are taken out."""
    path = tuned_file()
    try:
        kept = read_document(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, FormatError):
        kept = {}
    for winner in winners:
        kept.pop(winner.site.key, None)
        # What is usual is written down only where something else came with rlx.
        if not winner.is_usual or (winner.site.schedule, winner.site.signature) in shipped(machine or host()):
            kept[winner.site.key] = {
                "schedule": winner.site.schedule,
                "kernel": winner.site.signature,
                "parameters": winner.best._asdict(),
                "seconds": winner.seconds,
                "usual_seconds": winner.usual_seconds,
            }
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write(document(kept).encode())
    return sum(not winner.is_usual for winner in winners)
