"""What distributions share: from the functions of the standard form to those with a place and a width."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rlx import ops
from rlx.errors import OpError
from rlx.numpy.arguments import array_function, inexact

__all__ = ["Continuous", "Discrete"]

Formula = Callable[..., Any]


class _Distribution:
    """A distribution with parameters of the given names: after the first argument, by position or by name."""

    def __init__(self, name: str, parameters: Sequence[str], defaults: dict[str, float], given: dict[str, Any]) -> None:
        self.name, self.parameters, self.defaults = name, tuple(parameters), defaults
        self.given: dict[str, Formula] = {k: v for k, v in given.items() if v is not None}
        self.__doc__ = f"Functions of (x, {self._signature}), from formulas for: {', '.join(self.given)}."

    def __repr__(self) -> str:
        return f"rlx.scipy.stats.{self.name}"

    @property
    def _signature(self) -> str:
        return ", ".join((*self.parameters, *(f"{k}={v:g}" for k, v in self.defaults.items())))

    def arguments(self, x: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """x, the parameters, and those with defaults, in one float type."""
        names = (*self.parameters, *self.defaults)
        values = dict(zip(names, args))
        unknown = [k for k in kwargs if k not in names or k in values]
        values |= kwargs
        missing = [n for n in self.parameters if n not in values]
        if unknown or missing or len(args) > len(names):
            raise OpError(
                f"{self.name}: functions take (x, {self._signature}); missing are {missing}, unknown {unknown}"
            )
        return inexact(x, *(values.get(n, self.defaults.get(n)) for n in names))

    def formula(self, function: str) -> Formula:
        if function not in self.given:
            raise OpError(f"{self.name} has no {function}; it has {', '.join(self.given)}")
        return self.given[function]


class Continuous(_Distribution):
    """A density and its integrals.

    Formulas take z = (x - loc) / scale, which lies in `support`, and the parameters: `logpdf`, `cdf`, `sf` and their
    logarithms, and the quantile `ppf` of a probability. What is not given follows from the others.
    """

    def __init__(
        self,
        name: str,
        *parameters: str,
        logpdf: Formula,
        cdf: Formula | None = None,
        sf: Formula | None = None,
        logcdf: Formula | None = None,
        logsf: Formula | None = None,
        ppf: Formula | None = None,
        isf: Formula | None = None,
        support: tuple[float, float] = (-math.inf, math.inf),
    ) -> None:
        given = {"logpdf": logpdf, "cdf": cdf, "sf": sf, "logcdf": logcdf, "logsf": logsf, "ppf": ppf, "isf": isf}
        super().__init__(name, parameters, {"loc": 0.0, "scale": 1.0}, given)
        self.support = support

    def _standard(self, x: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
        """Inside of the support z, outside of it a place within, so that nothing infinite meets a derivative."""
        x, *parameters, loc, scale = self.arguments(x, args, kwargs)
        z = (x - loc) / scale
        low, high = self.support
        is_inside = ops.and_(ops.ge(z, low), ops.le(z, high))
        safe = ops.where(ops.or_(is_inside, ops.isnan(z)), z, _within(low, high))
        return safe, z, (parameters, scale)

    @array_function
    def logpdf(self, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The logarithm of the density at x."""
        safe, z, (parameters, scale) = self._standard(x, args, kwargs)
        found = self.given["logpdf"](safe, *parameters) - ops.log(scale)
        low, high = self.support
        outside = ops.or_(ops.lt(z, low), ops.gt(z, high))
        return ops.where(outside, -math.inf, found)

    @array_function
    def pdf(self, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The density at x."""
        return ops.exp(self.logpdf(x, *args, **kwargs))

    @array_function
    def cdf(self, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The probability of at most x."""
        return self._probability(("cdf", "sf"), x, args, kwargs)

    @array_function
    def sf(self, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The probability of more than x."""
        return self._probability(("sf", "cdf"), x, args, kwargs)

    @array_function
    def logcdf(self, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The logarithm of the probability of at most x."""
        if "logcdf" not in self.given:
            return ops.log(self.cdf(x, *args, **kwargs))
        return self._at_ends("logcdf", (-math.inf, 0.0), x, args, kwargs)

    @array_function
    def logsf(self, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The logarithm of the probability of more than x."""
        if "logsf" not in self.given:
            return ops.log(self.sf(x, *args, **kwargs))
        return self._at_ends("logsf", (0.0, -math.inf), x, args, kwargs)

    @array_function
    def ppf(self, q: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The x of which `cdf` is q; NaN for a q that is no probability."""
        return self._quantile("ppf", q, args, kwargs)

    @array_function
    def isf(self, q: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The x of which `sf` is q; NaN for a q that is no probability."""
        return self._quantile("isf", q, args, kwargs)

    def _probability(self, names: tuple[str, str], x: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The first of `names`, from its own formula, or from that of the second, or from a logarithm."""
        ends = (0.0, 1.0) if names[0] == "cdf" else (1.0, 0.0)
        if names[0] in self.given:
            return self._at_ends(names[0], ends, x, args, kwargs)
        if f"log{names[0]}" in self.given:
            return ops.exp(getattr(self, f"log{names[0]}")(x, *args, **kwargs))
        if f"log{names[1]}" in self.given:
            return ops.neg(ops.expm1(getattr(self, f"log{names[1]}")(x, *args, **kwargs)))
        self.formula(names[1])
        return 1.0 - getattr(self, names[1])(x, *args, **kwargs)

    def _at_ends(
        self, function: str, ends: tuple[float, float], x: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        safe, z, (parameters, _) = self._standard(x, args, kwargs)
        low, high = self.support
        found = self.formula(function)(safe, *parameters)
        return ops.where(ops.lt(z, low), ends[0], ops.where(ops.gt(z, high), ends[1], found))

    def _quantile(self, function: str, q: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        q, *parameters, loc, scale = self.arguments(q, args, kwargs)
        if function == "isf" and "isf" not in self.given:
            found = self.formula("ppf")(1.0 - q, *parameters)
        else:
            found = self.formula(function)(q, *parameters)
        valid = ops.and_(ops.ge(q, 0.0), ops.le(q, 1.0))
        return ops.where(valid, found * scale + loc, math.nan)


def _within(low: float, high: float) -> float:
    if math.isinf(low):
        return 0.0 if math.isinf(high) else high - 1.0
    return low + 1.0 if math.isinf(high) else (low + high) / 2.0


class Discrete(_Distribution):
    """The probabilities of whole numbers k from `first` on, or up to what `last` makes of the parameters."""

    def __init__(
        self,
        name: str,
        *parameters: str,
        logpmf: Formula,
        cdf: Formula | None = None,
        ppf: Formula | None = None,
        entropy: Formula | None = None,
        first: int = 0,
        last: Formula | None = None,
    ) -> None:
        given = {"logpmf": logpmf, "cdf": cdf, "ppf": ppf, "entropy": entropy}
        super().__init__(name, parameters, {"loc": 0.0}, given)
        self.first, self.last = first, last

    @array_function
    def logpmf(self, k: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The logarithm of the probability of k; of what is no whole number it is -inf."""
        k, *parameters, loc = self.arguments(k, args, kwargs)
        k = k - loc
        possible = ops.and_(ops.ge(k, float(self.first)), ops.eq(k, ops.floor(k)))
        if self.last is not None:
            possible = ops.and_(possible, ops.le(k, self.last(*parameters)))
        found = self.given["logpmf"](ops.where(possible, k, float(self.first)), *parameters)
        return ops.where(possible, found, -math.inf)

    @array_function
    def pmf(self, k: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The probability of k."""
        return ops.exp(self.logpmf(k, *args, **kwargs))

    @array_function
    def cdf(self, k: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The probability of at most k."""
        k, *parameters, loc = self.arguments(k, args, kwargs)
        k = ops.floor(k - loc)
        found = self.formula("cdf")(ops.maximum(k, float(self.first)), *parameters)
        return ops.where(ops.lt(k, float(self.first)), 0.0, found)

    @array_function
    def ppf(self, q: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The smallest k of which `cdf` is at least q."""
        q, *parameters, loc = self.arguments(q, args, kwargs)
        valid = ops.and_(ops.ge(q, 0.0), ops.le(q, 1.0))
        return ops.where(valid, self.formula("ppf")(q, *parameters) + loc, math.nan)
