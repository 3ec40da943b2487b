"""Reading the fields of a Hugging Face `config.json`: typed, with errors that name the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx.errors import FormatError
from rlx.models.config import checked_layers
from rlx.ops.pointwise.unary import ActivationKind

# How Hugging Face spells activations.
ACTIVATIONS: dict[str, ActivationKind] = {
    "silu": ActivationKind.Silu,
    "swish": ActivationKind.Silu,
    "relu": ActivationKind.Relu,
    "tanh": ActivationKind.Tanh,
    "sigmoid": ActivationKind.Sigmoid,
    "gelu": ActivationKind.Gelu,
    "gelu_python": ActivationKind.Gelu,
    "gelu_new": ActivationKind.GeluApprox,
    "gelu_fast": ActivationKind.GeluApprox,
    "gelu_accurate": ActivationKind.GeluApprox,
    "gelu_pytorch_tanh": ActivationKind.GeluApprox,
}
# Activations that are the square of another.
SQUARES = ("relu2", "relu_squared")
# Sizes beyond this belong to no model, and would overflow what is computed of them.
_LARGEST = 2**31 - 1


class HfFields:
    """Fields by name. A field that is null counts as missing; one without a default must be there."""

    def __init__(self, fields: Mapping[str, Any], family: str | None = None) -> None:
        self._fields = fields
        self.family = str(fields.get("model_type")) if family is None else family

    def has(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def is_zero(self, name: str) -> bool:
        """Whether a number is there that says "none"."""
        value = self._fields.get(name)
        return isinstance(value, int | float) and not isinstance(value, bool) and value == 0

    def is_below_one(self, name: str) -> bool:
        """Whether a number is there that says "not given", as 0 or -1 does."""
        value = self._fields.get(name)
        return isinstance(value, int | float) and not isinstance(value, bool) and value < 1

    def size(self, name: str, default: int | None = None, least: int = 1) -> int:
        """A whole number."""
        value = self._needed(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST:
            raise FormatError(f"config.json: {name} must be a whole number from {least} on, got {value!r}")
        return value

    def layers(self, name: str) -> int:
        """A number of layers, of which lists are made."""
        return checked_layers(self.size(name))

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number."""
        return self.optional_number(name) or _positive(name, self._needed(name, default))

    def optional_number(self, name: str) -> float | None:
        return _positive(name, self._fields[name]) if self.has(name) else None

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of positive numbers."""
        value = self._needed(name, None)
        if not isinstance(value, list):
            raise FormatError(f"config.json: {name} must be a list of numbers, got {value!r}")
        return tuple(_positive(name, entry) for entry in value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._needed(name, default)
        if not isinstance(value, bool):
            raise FormatError(f"config.json: {name} must be true or false, got {value!r}")
        return value

    def table(self, name: str) -> Mapping[str, Any]:
        """An object; empty where there is none."""
        value = self._fields.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise FormatError(f"config.json: {name} must be an object, got {value!r}")
        return value or {}

    def listed(self, name: str) -> list[Any] | None:
        """A list, or None."""
        value = self._fields.get(name)
        if value is not None and not isinstance(value, list):
            raise FormatError(f"config.json: {name} must be a list, got {value!r}")
        return value

    def activation(self, *names: str) -> ActivationKind:
        """An activation, from the first of several fields that is there."""
        name = next((self._fields[n] for n in names if self.has(n)), None)
        if not isinstance(name, str) or name not in ACTIVATIONS:
            raise FormatError(
                f"config.json: {names[0]} {name!r} is not supported; supported: {', '.join(sorted(ACTIVATIONS))}"
            )
        return ACTIVATIONS[name]

    def is_square(self, *names: str) -> bool:
        """Whether the activation, from the first of several fields that is there, is the square of relu."""
        return next((self._fields[n] for n in names if self.has(n)), None) in SQUARES

    def text(self, name: str, default: str) -> str:
        value = self._needed(name, default)
        if not isinstance(value, str):
            raise FormatError(f"config.json: {name} must be a text, got {value!r}")
        return value

    def whole(self, name: str, default: int) -> int:
        """A whole number, which may be below 0."""
        value = self._needed(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _LARGEST:
            raise FormatError(f"config.json: {name} must be a whole number, got {value!r}")
        return value

    def text_or_none(self, name: str) -> str | None:
        """A text where there is one, of a field that may be something else."""
        value = self._fields.get(name)
        return value if isinstance(value, str) else None

    def same_for_all(self, *names: str) -> int:
        """A whole number from the first of several fields that is there; it may be written once for each layer."""
        name = next((n for n in names if self.has(n)), names[0])
        value = self._fields.get(name)
        if not isinstance(value, list):
            return self.size(name)
        if not value or any(entry != value[0] for entry in value):
            raise FormatError(f"config.json: {name} must be the same for all layers, got {value!r:.100}")
        return HfFields({name: value[0]}, self.family).size(name)

    def without(self, *names: str) -> HfFields:
        """The same fields without some of them."""
        return HfFields({name: value for name, value in self._fields.items() if name not in names}, self.family)

    def with_default(self, name: str, value: Any) -> HfFields:
        """The same fields, with a value for one that may be missing."""
        return self if self.has(name) else self.with_value(name, value)

    def with_value(self, name: str, value: Any) -> HfFields:
        """The same fields, with a value for one of them."""
        return HfFields({**self._fields, name: value}, self.family)

    def renamed(self, names: Mapping[str, str]) -> HfFields:
        """The same fields, those on the left being called as on the right in this file."""
        return HfFields({**self._fields, **{name: self._fields.get(own) for name, own in names.items()}}, self.family)

    def refuse(self, name: str, *accepted: Any) -> None:
        """Refuse a field that changes the mathematics in a way that is not supported."""
        if self.has(name) and self._fields[name] not in accepted:
            wanted = ", ".join(map(repr, accepted)) or "none"
            raise FormatError(f"config.json: {name}={self._fields[name]!r} is not supported; supported: {wanted}")

    def refuse_quantized(self, *accepted: str) -> None:
        """Weights that another library has quantised in its own layout cannot be read as plain tensors."""
        method = self.table("quantization_config").get("quant_method")
        if method is not None and method not in accepted:
            raise FormatError(
                f"config.json: weights quantised by {method!r} are not supported; use the original or a GGUF"
            )

    def _needed(self, name: str, default: Any) -> Any:
        value = self._fields.get(name)
        value = default if value is None else value
        if value is None:
            raise FormatError(f"config.json: {name!r} is missing; a model of type {self.family!r} needs it")
        return value


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise FormatError(f"config.json: {name} must be a positive number, got {value!r}")
    return float(value)
