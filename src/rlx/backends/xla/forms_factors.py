"""Steps of factorisations as loops of ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.ir.op import Op

Form = Callable[..., Any]

FACTOR_STEPS: dict[type[Op], Callable[..., Form | None]] = {}
