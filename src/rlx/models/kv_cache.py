"""Running a decoder program step by step: `DecoderRunner` holds the compiled program, `SequenceBatch` the state of
sequences that advance together, each at its own length.

A cache has a capacity, of which the last place is spare: padding is written there, and no query ever sees it. When
sequences outgrow the capacity the caches are copied into larger ones; the program stays the same.

Models may also keep states, which have the same size for all lengths. They cannot go back: a sequence that is shortened
goes on from the state behind the last prompt, if that is where it ends now, or is read again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlx.backends.memory import ALIGNMENT
from rlx.errors import BindingError, RlxError
from rlx.ir.dims import bind_dim
from rlx.models.choosing import Choice
from rlx.models.config import DecoderConfig, RopeConfig
from rlx.models.picture_tokens import PictureToken, rows_and_places
from rlx.models.relative_positions import backward_buckets
from rlx.models.rope_tables import changes_at, rope_tables
from rlx.models.sampling import SamplingOptions
from rlx.runtime.arrays import given_away
from rlx.runtime.compiled_graph import CompiledGraph
from rlx.runtime.device_arrays import DeviceArray, space_of

if TYPE_CHECKING:
    from rlx.models.divided import DividedProgram

Array = np.ndarray[Any, np.dtype[Any]]
F32 = npt.NDArray[np.float32]

# Prompts are read in pieces of this many tokens, so that memory does not grow with their length.
PREFILL_CHUNK = 512
FIRST_CAPACITY = 256


class ContextOverflow(RlxError):
    """A sequence does not fit into the context of the model."""


class DecoderRunner:
    """A compiled decoder program with its rotary tables. Any number of threads may run it."""

    def __init__(
        self,
        config: DecoderConfig,
        program: CompiledGraph | DividedProgram,
        cache_names: Sequence[str],
        on_host: Callable[[Any], Array] = np.asarray,
    ) -> None:
        """`on_host` gives the content of a cache that the program has returned."""
        self.config, self.program, self.cache_names = config, program, tuple(cache_names)
        self.on_host = on_host
        self.changes_at = changes_at(config.rope, config.local_rope)
        types = program.input_types
        self._cache_types = [types[name] for name in self.cache_names]
        # Caches with a place for each token; the others are states.
        self.has_places = ["C" in map(str, t.dims) for t in self._cache_types]
        self.has_states = not all(self.has_places)
        self.reads_pictures = "pictures" in types
        self._tables = lru_cache(4)(self._make_tables)
        self._more: Mapping[str, Any] = {}
        self._choices = lru_cache(4)(lambda options: Choice(options, config.vocab, program.device))

    def with_inputs(self, more: Mapping[str, Any]) -> DecoderRunner:
        """The same program, which is given these inputs too, whatever the step."""
        runner = copy(self)
        runner._more = more
        return runner

    def _make_tables(self, capacity: int) -> dict[str, Any]:
        tables: dict[str, Array] = {}
        for name, rope in (("rope", self.config.rope), ("rope.local", self.config.local_rope)):
            if rope is not None:
                tables[f"{name}.cos"], tables[f"{name}.sin"] = _tables_of(rope, capacity)
        if self.config.relative_buckets:
            sizes = self.config.relative_buckets, self.config.relative_max_distance
            tables["buckets"] = backward_buckets(capacity, *sizes)
        space = space_of(self.program.device)
        # Where the program runs, so that they do not go there for each token.
        return tables if space is None else {name: DeviceArray(space.put(table)) for name, table in tables.items()}

    def tables_for(self, length: int) -> dict[str, Any]:
        """The tables of texts of this length that are read as a whole."""
        places = 1 << length.bit_length()
        limit = self.changes_at
        return self._tables(places + 1 if limit is None or length > limit else min(places, limit) + 1)

    def places(self, caches: Sequence[Array]) -> int:
        """How many places caches have, the spare one included."""
        lengths = (cache.shape[2] for cache, has in zip(caches, self.has_places) if has)
        return next(lengths, self.config.context + 1)

    def parts(self, begin: int, end: int) -> list[tuple[slice, ...]]:
        """Where tokens lie in each cache: at their places, or anywhere in a state."""
        places = (slice(None), slice(None), slice(begin, end))
        return [places if has else () for has in self.has_places]

    def run(
        self,
        tokens: Array,
        positions: Array,
        kv_len: Array,
        rows: Array,
        caches: list[Array],
        pictures: Mapping[str, Any] | None = None,
    ) -> tuple[F32, list[Array]]:
        """Logits f32[B, R, V] of the `rows` asked for, and the caches with the new keys and values. `pictures` are the
        inputs of that name and `seen`, where rows of pictures stand in the place of words."""
        logits, caches = self.run_there(tokens, positions, kv_len, rows, caches, pictures)
        return given_away(logits), caches

    def run_there(
        self,
        tokens: Any,
        positions: Any,
        kv_len: Any,
        rows: Any,
        caches: list[Array],
        pictures: Mapping[str, Any] | None = None,
    ) -> tuple[Any, list[Array]]:
        """The same with arrays that lie where the program runs, and logits that stay there."""
        inputs = self._inputs(tokens, positions, kv_len, rows, caches) | dict(pictures or {})
        # The caches are passed on as they come: a program may write into arrays that it returned itself.
        logits, *updated = self.program.run(inputs)
        return logits, list(updated)

    def _inputs(self, tokens: Any, positions: Any, kv_len: Any, rows: Any, caches: list[Array]) -> dict[str, Any]:
        """The inputs of a step of words."""
        inputs = {"tokens": tokens, "positions": positions, "kv_len": kv_len, "rows": rows}
        if self.reads_pictures:
            inputs |= rows_and_places([()] * tokens.shape[0], tokens.shape[1], self.config.hidden)
        return {**inputs, **self._tables(self.places(caches)), **dict(zip(self.cache_names, caches)), **self._more}

    def run_ahead(
        self, tokens: Array, positions: Array, kv_len: Array, rows: Array, caches: list[Array], moves: Array, steps: int
    ) -> tuple[npt.NDArray[np.int32], list[Array]] | None:
        """So many steps in one go, with the most probable tokens, which are given back [steps, B]; None where the
        program has no such way."""
        if isinstance(self.program, CompiledGraph):
            inputs = self._inputs(tokens, positions, kv_len, rows, caches)
            found = self.program.run_ahead(inputs, moves, steps)
            if found is not None:
                return np.asarray(found[0]), list(found[1:])
        return None

    def choice(self, options: SamplingOptions) -> Choice:
        """What chooses tokens where the program runs; the same for all seeds."""
        return self._choices(replace(options, seed=None))

    def new_caches(self, batch: int, capacity: int) -> list[Array]:
        """Empty caches for `batch` sequences, with `capacity` places each.

        All lie in one piece of memory: the system has large pages for large pieces, from which kernels read faster.
        """
        sizes = {"B": batch, "C": capacity}
        bound = [t.with_dims(tuple(bind_dim(d, sizes) for d in t.dims)) for t in self._cache_types]
        ends = list(itertools.accumulate(_whole_lines(math.prod(t.static_dims) * t.dtype.size_bytes) for t in bound))
        # Zeros of the system: it provides the pages when they are first used.
        raw = np.zeros(ends[-1] + ALIGNMENT, np.uint8)
        first = -raw.ctypes.data % ALIGNMENT
        return [
            np.ndarray(t.static_dims, t.dtype.numpy, raw, first + start) for t, start in zip(bound, [0, *ends[:-1]])
        ]


def _whole_lines(size: int) -> int:
    """Bytes up to where the next cache may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _tables_of(rope: RopeConfig, capacity: int) -> tuple[F32, F32]:
    # The spare place is no position, so it does not count towards the length that the factors depend on.
    cos, sin = rope_tables(rope, capacity - 1)
    return np.concatenate([cos, cos[:1]]), np.concatenate([sin, sin[:1]])


class SequenceBatch:
    """Sequences of tokens whose keys and values are cached."""

    def __init__(self, runner: DecoderRunner, batch: int = 1) -> None:
        self._runner = runner
        self.tokens: list[list[int]] = [[] for _ in range(batch)]
        self._caches: list[Array] = []
        # The memory in which they begin, as the host may write it.
        self._own: list[Array] = []
        # Rows whose states are those of a longer text; and states of all rows, with the tokens that they are behind.
        self._ahead: set[int] = set()
        self._kept: tuple[list[list[int]], list[Array]] | None = None

    @property
    def capacity(self) -> int:
        """How many tokens of a sequence the caches have room for."""
        return self._runner.places(self._caches) - 1 if self._caches else 0

    @property
    def size(self) -> int:
        """The bytes of the caches."""
        return sum(cache.nbytes for cache in self._caches)

    def take_over(self, source: SequenceBatch, row: int, length: int, into: int = 0) -> None:
        """Go on with what a row of another batch has up to `length`, where this sequence has the same tokens so far.

        Nothing happens where the row has no states of that length."""
        begin, wanted = len(self.tokens[into]), source.tokens[row][:length]
        is_behind = row in source._ahead or length < len(source.tokens[row])
        if begin >= length or (self._runner.has_states and is_behind):
            return
        self.reserve(length)
        for new, old, part in zip(self._writable(), source._caches, self._runner.parts(begin, length)):
            new[into : into + 1][part] = self._runner.on_host(old)[row : row + 1][part]
        self.tokens[into] = wanted
        self._ahead.discard(into)

    def _writable(self) -> list[Array]:
        """The caches as the host may write them: what programs return can be read only."""
        own, there = self._own, [self._runner.on_host(cache) for cache in self._caches]
        if any(a.ctypes.data != b.ctypes.data for a, b in zip(own, there)):
            # They are not in the memory that they were given.
            self._allocate(len(self.tokens), self.capacity + 1)
            for new, old in zip(self._caches, there):
                new[...] = old
            own = self._own
        self._caches = [cache[: len(self.tokens)] for cache in own]
        return self._caches

    def truncate(self, row: int, length: int) -> None:
        """Forget the tokens of a sequence from `length` on."""
        if length < len(self.tokens[row]) and self._runner.has_states:
            self._ahead.add(row)
        del self.tokens[row][length:]

    def repeated(self, count: int) -> SequenceBatch:
        """A batch that has each of these sequences `count` times, with caches of their own."""
        copy = SequenceBatch(self._runner)
        copy.tokens = [list(tokens) for tokens in self.tokens for _ in range(count)]
        copy._allocate(len(copy.tokens), self.capacity + 1 if self._caches else 0)
        copy._ahead = {row * count + i for row in self._ahead for i in range(count)}
        for new, old in zip(copy._caches, self._caches):
            new[...] = np.repeat(self._runner.on_host(old), count, axis=0)
        return copy

    def reorder(self, rows: Sequence[int]) -> None:
        """Go on with these sequences in the place of those that there are; one may be taken several times."""
        if list(rows) == list(range(len(self.tokens))):
            return
        self.tokens = [list(self.tokens[row]) for row in rows]
        used, old = max(map(len, self.tokens)), self._caches
        self._allocate(len(rows), self.capacity + 1 if old else 0)
        self._ahead, self._kept = {i for i, row in enumerate(rows) if row in self._ahead}, None
        for new, before, part in zip(self._caches, old, self._runner.parts(0, used)):
            # What stands at the other places means nothing.
            new[part] = self._runner.on_host(before)[list(rows)][part]

    def extend(self, new: Sequence[Sequence[int]]) -> F32:
        """Append tokens to each sequence (none is allowed for some): logits f32[B, V] after the last ones.

        A row without new tokens has logits that mean nothing.
        """
        self._check(new)
        self._go_back()
        self.reserve(max(len(old) + len(more) for old, more in zip(self.tokens, new)))
        length = max(map(len, new))
        if length <= PREFILL_CHUNK:
            return self._logits_after(new)
        result = np.zeros((len(new), self._runner.config.vocab), np.float32)
        for start in range(0, length, PREFILL_CHUNK):
            pieces = [ids[start : start + PREFILL_CHUNK] for ids in new]
            logits = self._logits_after(pieces)
            for row, piece in enumerate(pieces):
                if piece:
                    result[row] = logits[row]
        return result

    def _logits_after(self, pieces: Sequence[Sequence[int]]) -> F32:
        """Run one step: logits f32[B, V] after the last token of each piece."""
        ends = [max(len(p) - 1, 0) for p in pieces]
        return self._advance(pieces, np.array(ends, np.int32)[:, None])[:, 0]

    def all_logits(self, new: Sequence[int]) -> F32:
        """Append tokens to the only sequence: logits f32[len(new), V] after each of them; at most PREFILL_CHUNK."""
        self._check([new])
        self._go_back()
        self.reserve(len(self.tokens[0]) + len(new))
        return self._advance([new], np.arange(len(new), dtype=np.int32)[None])[0]

    def _check(self, new: Sequence[Sequence[int]]) -> None:
        config = self._runner.config
        if len(new) != len(self.tokens) or not any(map(len, new)):
            raise BindingError(f"{len(self.tokens)} sequences need {len(self.tokens)} lists of tokens, not all empty")
        for old, more in zip(self.tokens, new):
            if len(old) + len(more) > config.context:
                raise ContextOverflow(
                    f"{len(old)} tokens and {len(more)} more do not fit into the context of {config.context} tokens "
                    "of this model; shorten the prompt"
                )
            wrong = next((t for t in more if not (0 <= t < config.vocab or self._is_picture(t))), None)
            if wrong is not None:
                raise BindingError(f"token {wrong} is not one of the {config.vocab} tokens of this model")

    def _is_picture(self, token: int) -> bool:
        return self._runner.reads_pictures and isinstance(token, PictureToken)

    def words(self, row: int) -> Sequence[int]:
        """The tokens of a sequence that are words."""
        tokens = self.tokens[row]
        return [t for t in tokens if not self._is_picture(t)] if self._runner.reads_pictures else tokens

    def _advance(self, pieces: Sequence[Sequence[int]], rows: Array) -> F32:
        """Run one step. Shorter pieces are padded; padding stands at the spare place."""
        length, spare = max(map(len, pieces)), self.capacity
        tokens = np.zeros((len(pieces), length), np.int32)
        positions = np.full((len(pieces), length), spare, np.int32)
        for row, (old, piece) in enumerate(zip(self.tokens, pieces)):
            tokens[row, : len(piece)] = [0 if self._is_picture(t) else t for t in piece]
            positions[row, : len(piece)] = np.arange(len(old), len(old) + len(piece))
        kv_len = np.array([len(old) + len(piece) for old, piece in zip(self.tokens, pieces)], np.int32)
        pictures = None
        if self._runner.reads_pictures:
            pictures = rows_and_places(pieces, length, self._runner.config.hidden)
        logits, self._caches = self._runner.run(tokens, positions, kv_len, rows, self._caches, pictures)
        for old, piece in zip(self.tokens, pieces):
            old.extend(piece)
        if self._runner.has_states and length > 1:
            self._keep_states()
        return logits

    def _keep_states(self) -> None:
        """Remember the states behind a prompt; not where they would have to come from another device."""
        if not all(isinstance(cache, np.ndarray) for cache in self._caches):
            return
        states = [cache.copy() for cache, has in zip(self._caches, self._runner.has_places) if not has]
        self._kept = [list(tokens) for tokens in self.tokens], states

    def _go_back(self) -> None:
        """Give sequences that were shortened the states of what is left of them."""
        rows, self._ahead = self._ahead, set()
        again: list[list[int]] = [[] for _ in self.tokens]
        for row in rows:
            kept = self._kept if self._kept is not None and self._kept[0][row] == self.tokens[row] else None
            self._restore(row, None if kept is None else kept[1])
            if kept is None:
                again[row], self.tokens[row] = self.tokens[row], []
        if any(again):
            self.extend(again)

    def _restore(self, row: int, states: Sequence[Array] | None) -> None:
        """Give a sequence these states, or those of its beginning."""
        places = [i for i, has in enumerate(self._runner.has_places) if not has]
        for number, place in enumerate(places if self._caches else ()):
            self._caches[place] = np.array(self._runner.on_host(self._caches[place]))
            self._caches[place][row] = 0 if states is None else states[number][row]

    def can_write_ahead(self, options: SamplingOptions) -> bool:
        """Whether several steps may pay without the host between them: logits are far from it."""
        program = self._runner.program
        if not isinstance(program, CompiledGraph):
            return False
        return program.chooses_tokens or (program.runs_ahead and options.temperature == 0)

    def steps_ahead(self, most: int, longest: int) -> int:
        """How many steps at most follow each other where the longest sequence has so many tokens: positions of longer
        caches may turn differently, and the caches are those of the last step."""
        limit = self._runner.changes_at
        return most if limit is None or longest >= limit else min(most, limit - longest)

    def write_ahead(
        self, first: Sequence[int | None], options: SamplingOptions, uniforms: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.int32] | None:
        """Append a token to each sequence, and go on with what is chosen after it, a step for each row of uniform
        numbers [steps, B]: the tokens chosen [steps, B]. The last ones are not appended. A sequence without a first
        token stays as it is. None, and nothing is done, where the host is as fast."""
        steps, runner = len(uniforms), self._runner
        self._check([[] if token is None else [token] * steps for token in first])
        self._go_back()
        self.reserve(max(len(old) + steps * (token is not None) for old, token in zip(self.tokens, first)))
        spare = self.capacity
        fed = np.array([[token or 0] for token in first], np.int32)
        moves = np.array([token is not None for token in first], np.int32)
        lengths = np.array([len(old) for old in self.tokens], np.int32)
        tokens, positions = fed, np.where(moves, lengths, spare).astype(np.int32)[:, None]
        lengths = lengths + moves
        rows, found = np.zeros_like(fed), []
        at_once = None
        if options.temperature == 0:
            at_once = runner.run_ahead(tokens, positions, lengths, rows, self._caches, moves, steps)
        if at_once is not None:
            chosen, self._caches = at_once
        elif not (isinstance(runner.program, CompiledGraph) and runner.program.chooses_tokens):
            return None
        else:
            choose = runner.choice(options)
            for row in uniforms:
                logits, self._caches = runner.run_there(tokens, positions, lengths, rows, self._caches)
                tokens, positions, lengths = choose(logits, row, positions, lengths, moves)
                found.append(tokens)
            chosen = np.stack([np.asarray(t)[:, 0] for t in found]).astype(np.int32)
        for old, token, more in zip(self.tokens, first, chosen.T.tolist()):
            if token is not None:
                old += [token, *more[:-1]]
        return chosen

    def reserve(self, length: int) -> None:
        """Make room for sequences of this length."""
        if length <= self.capacity:
            return
        config, before = self._runner.config, self.capacity
        capacity = FIRST_CAPACITY
        while capacity - 1 < length:
            capacity *= 2
        limit = self._runner.changes_at
        # Positions of longer caches turn differently, so sequences stay in short ones while they can.
        capacity = min(capacity, config.context + 1 if limit is None or length > limit else limit + 1)
        old = self._caches
        self._allocate(len(self.tokens), capacity)
        if limit is not None and before <= limit < length:
            self._read_again()
            return
        for new_cache, old_cache, part in zip(self._caches, old, self._runner.parts(0, before)):
            new_cache[part] = self._runner.on_host(old_cache)[part]

    def _allocate(self, rows: int, capacity: int) -> None:
        """New caches with so many places; none without places."""
        self._own = self._runner.new_caches(rows, capacity) if capacity else []
        self._caches = list(self._own)

    def _read_again(self) -> None:
        """Compute all keys and values anew."""
        tokens, self.tokens = self.tokens, [[] for _ in self.tokens]
        if any(tokens):
            self.extend(tokens)
