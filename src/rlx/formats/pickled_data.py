"""Data that was pickled, read without Python's own reader: no function that a file names is ever looked up.

A pickle is a program for a machine with a stack. Here its instructions put lists, tuples, mappings, texts and numbers
together; what a name stands for, and what a reference to something outside the pickle is, the caller says.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import IO, Any

from rlx.errors import FormatError

_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PLAIN = (int, float, str, bytes)


def read_pickled(file: IO[bytes], named: Callable[[str, str], Any], referred: Callable[[Any], Any]) -> Any:
    """The next pickled value of a file. `named(module, name)` gives what a name stands for, which is called if it is a
    function; `referred(id)` gives what lies outside. Either refuses what it does not know."""
    machine = _Machine(named, referred)
    for instruction, argument, _ in pickletools.genops(file):
        if instruction.name == "STOP":
            return machine.stack.pop()
        machine.run(instruction.name, argument)
    raise FormatError("the pickle has no end")


class _Machine:
    def __init__(self, named: Callable[[str, str], Any], referred: Callable[[Any], Any]) -> None:
        self._named, self._referred = named, referred
        self.stack: list[Any] = []
        self._memory: dict[int, Any] = {}

    def run(self, name: str, argument: Any) -> None:
        """One instruction."""
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            self.stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            self.stack.append(tuple(self._taken(_TUPLES[name])))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memory[argument] = self.stack[-1]
        elif name == "MEMOIZE":
            self._memory[len(self._memory)] = self.stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self._memory[argument])
        elif (step := getattr(self, f"_{name.lower()}", None)) is not None:
            step(argument)
        elif isinstance(argument, _PLAIN) and name not in ("PERSID", "INST", "EXT1", "EXT2", "EXT4"):
            # Numbers and texts, for which there are many instructions.
            self.stack.append(argument)
        else:
            raise FormatError(f"the file has the instruction {name}, which plain data do not need")

    def _taken(self, count: int) -> list[Any]:
        if count > len(self.stack):
            raise FormatError("the pickle takes more than it has")
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def _marked(self) -> list[Any]:
        """Everything since the last mark."""
        at = next((i for i in reversed(range(len(self.stack))) if self.stack[i] is _MARK), None)
        if at is None:
            raise FormatError("the pickle takes more than it has")
        return self._taken(len(self.stack) - at)[1:]

    def _proto(self, argument: Any) -> None:
        """The version says nothing that the instructions do not."""

    def _frame(self, argument: Any) -> None:
        """How many bytes follow, for readers that wait for them."""

    def _mark(self, argument: Any) -> None:
        self.stack.append(_MARK)

    def _pop(self, argument: Any) -> None:
        self.stack.pop()

    def _tuple(self, argument: Any) -> None:
        self.stack.append(tuple(self._marked()))

    def _list(self, argument: Any) -> None:
        self.stack.append(self._marked())

    def _dict(self, argument: Any) -> None:
        self._set({}, self._marked())

    def _append(self, argument: Any) -> None:
        self._extend(self._taken(1))

    def _appends(self, argument: Any) -> None:
        self._extend(self._marked())

    def _extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise FormatError("the pickle appends to what is not a list")
        target.extend(items)

    def _setitem(self, argument: Any) -> None:
        pair = self._taken(2)
        self._set(self.stack.pop(), pair)

    def _setitems(self, argument: Any) -> None:
        pairs = self._marked()
        self._set(self.stack.pop(), pairs)

    def _set(self, target: Any, pairs: list[Any]) -> None:
        if not isinstance(target, dict) or len(pairs) % 2:
            raise FormatError("the pickle puts names into what is not a mapping")
        target.update(zip(pairs[::2], pairs[1::2]))
        self.stack.append(target)

    def _global(self, argument: Any) -> None:
        module, _, name = str(argument).partition(" ")
        self.stack.append(self._named(module, name))

    def _stack_global(self, argument: Any) -> None:
        module, name = self._taken(2)
        self.stack.append(self._named(str(module), str(name)))

    def _reduce(self, argument: Any) -> None:
        function, given = self._taken(2)
        if not callable(function) or not isinstance(given, tuple):
            raise FormatError("the pickle calls what is not a function")
        self.stack.append(function(*given))

    def _build(self, argument: Any) -> None:
        """Attributes of an object, of which plain data have none."""
        self.stack.pop()

    def _binpersid(self, argument: Any) -> None:
        self.stack.append(self._referred(self.stack.pop()))
