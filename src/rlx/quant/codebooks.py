"""The codebook types of GGUF (IQ1, IQ2, IQ3): groups of 4 or 8 weights are one entry of a fixed table, with signs.

A codebook is a set of tuples over a few levels, held as a bitmap: bit n belongs to the tuple whose digit i is
`n // levels^i % levels`. Its entries are numbered in the order of n.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.quant.block_fields import F32, U8, bit_pairs, bits, f16, nibbles

U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]

_IQ2_LEVELS = (8, 25, 43)
_LEVELS: dict[str, tuple[int, ...]] = {
    "IQ2_XXS": _IQ2_LEVELS,
    "IQ2_XS": _IQ2_LEVELS,
    "IQ2_S": _IQ2_LEVELS,
    "IQ3_XXS": (4, 12, 20, 28, 36, 44, 52, 62),
    "IQ3_S": (1, 3, 5, 7, 9, 11, 13, 15),
    "IQ1_S": (-1, 0, 1),
}
# How far IQ1 values are moved from the entries of their codebook.
_IQ1_SHIFT = np.float32(0.125)


class Indices(NamedTuple):
    """What blocks hold, as bytes: d as a half u8[blocks, 2]; numbers of scales u8[blocks, steps]; numbers of entries,
    low and high byte, u8[blocks, entries]; and a bit for each element, lowest first, u8[blocks, elements/8]: its sign,
    or (IQ1) whether it is moved down. Every bit of them is the exclusive or of some bits of the block."""

    d: U8
    scales: U8
    low: U8
    high: U8
    signs: U8


class Parts(NamedTuple):
    """Blocks as steps f32[blocks, groups] and values f32[blocks, groups, n]; an element is step·value."""

    steps: F32
    values: F32


class CodebookType(NamedTuple):
    """An element of a block is d·factors[scale]·value, the value being an element of an entry of `book` with its
    sign."""

    book: str
    indices: Callable[[U8], Indices]
    factors: tuple[float, ...]

    def parts(self, blocks: U8) -> Parts:
        found, table = self.indices(blocks), signed_entries(self.book)
        steps = f16(found.d, 0) * np.array(self.factors, np.float32)[found.scales]
        numbers = (found.low | found.high.astype(np.uint16) << 8)[:, :, None]
        signs = bits(found.signs).reshape(*numbers.shape[:2], -1)
        values = table[signs, numbers, np.arange(table.shape[2])]
        return Parts(steps, values.reshape(*steps.shape, -1))

    def decode(self, blocks: U8) -> F32:
        steps, values = self.parts(blocks)
        return (steps[:, :, None] * values).reshape(len(blocks), -1)


@functools.cache
def codebook(name: str) -> F32:
    """The entries of the codebook of a type: f32[entries, 8], or 4 wide for the IQ3 types.

    >>> codebook("IQ2_XXS").shape, codebook("IQ3_S")[1].tolist()
    ((256, 8), [3.0, 1.0, 1.0, 1.0])
    """
    levels = np.array(_LEVELS[name], np.float32)
    width = 4 if name.startswith("IQ3") else 8
    bitmap: U8 = np.frombuffer(base64.b64decode(_BITMAPS[name]), np.uint8)
    members = np.flatnonzero(np.unpackbits(bitmap, bitorder="little"))
    entries = levels[members[:, None] // len(levels) ** np.arange(width) % len(levels)]
    entries.flags.writeable = False
    return entries


@functools.cache
def signed_entries(name: str) -> F32:
    """f32[2, entries, n]: the entries, and what they are where the bit of an element is set."""
    entries = codebook(name)
    if name == "IQ1_S":
        return np.stack([entries + _IQ1_SHIFT, entries - _IQ1_SHIFT])
    return np.stack([entries, -entries])


@functools.cache
def _sign_bytes() -> U8:
    """Seven sign bits, and an eighth that makes the number of minus signs even."""
    codes: U8 = np.arange(128, dtype=np.uint8)
    ones = np.unpackbits(codes[:, None], axis=1).sum(axis=1, dtype=np.uint8)
    return codes | (ones & 1) << 7


def _u16(blocks: U8, start: int, stop: int) -> U16:
    return np.ascontiguousarray(blocks[:, start:stop]).view("<u2").astype(np.uint16, copy=False)


def _u32(blocks: U8, start: int, stop: int) -> U32:
    return np.ascontiguousarray(blocks[:, start:stop]).view("<u4").astype(np.uint32, copy=False)


def _seven_bit_signs(words: U32) -> U8:
    """Four sign fields of seven bits in the low 28 bits of each word: u32[blocks, m] -> u8[blocks, 4m]."""
    fields = words[:, :, None] >> np.array([0, 7, 14, 21], np.uint32) & 127
    return _sign_bytes()[fields].reshape(len(words), -1)


def _three_bits(words: U16) -> U8:
    """Four fields in the low 12 bits of each word: u16[blocks, m] -> u8[blocks, 4m]."""
    fields = words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7
    return fields.reshape(len(words), -1).astype(np.uint8)


def _low_nibble_first(codes: U8) -> U8:
    """u8[blocks, m] -> u8[blocks, 2m], the two nibbles of a byte side by side."""
    return nibbles(codes[:, :, None]).reshape(len(codes), -1)


def _iq2_xxs(blocks: U8) -> Indices:
    """d:f16, (entries:u8[4], signs:u7[4] and s:u4 in a u32)[8]"""
    words = _u32(blocks, 2, 66).reshape(-1, 8, 2)[:, :, 1]
    low = blocks[:, 2:66].reshape(-1, 8, 8)[:, :, :4].reshape(-1, 32)
    return Indices(blocks[:, 0:2], (words >> 28).astype(np.uint8), low, low * np.uint8(0), _seven_bit_signs(words))


def _iq2_xs(blocks: U8) -> Indices:
    """d:f16, (entry:u9, signs:u7)[32], s:u4[16]"""
    words = _u16(blocks, 2, 66)
    low, high = ((words >> start & limit).astype(np.uint8) for start, limit in ((0, 255), (8, 1)))
    return Indices(blocks[:, 0:2], _low_nibble_first(blocks[:, 66:74]), low, high, _sign_bytes()[words >> 9])


def _iq2_s(blocks: U8) -> Indices:
    """d:f16, low:u8[32], signs:u8[32], high:u2[32], s:u4[16]"""
    high = bit_pairs(blocks[:, 66:74]).swapaxes(1, 2).reshape(-1, 32)
    return Indices(blocks[:, 0:2], _low_nibble_first(blocks[:, 74:82]), blocks[:, 2:34], high, blocks[:, 34:66])


def _iq3_xxs(blocks: U8) -> Indices:
    """d:f16, entry:u8[64], (signs:u7[4], s:u4)[8]"""
    words, low = _u32(blocks, 66, 98), blocks[:, 2:66]
    return Indices(blocks[:, 0:2], (words >> 28).astype(np.uint8), low, low * np.uint8(0), _seven_bit_signs(words))


def _iq3_s(blocks: U8) -> Indices:
    """d:f16, low:u8[64], high:u1[64], signs:u8[32], s:u4[8]"""
    scales = _low_nibble_first(blocks[:, 106:110])
    return Indices(blocks[:, 0:2], scales, blocks[:, 2:66], bits(blocks[:, 66:74]), blocks[:, 74:106])


def _iq1_s(blocks: U8) -> Indices:
    """d:f16, low:u8[32], (high:u3[4], s:u3, minus:u1)[8]"""
    words = _u16(blocks, 34, 50)
    minus = np.repeat((words >> 15).astype(np.uint8) * np.uint8(255), 4, axis=1)
    return Indices(blocks[:, 0:2], (words >> 12 & 7).astype(np.uint8), blocks[:, 2:34], _three_bits(words), minus)


def _iq1_m(blocks: U8) -> Indices:
    """low:u8[32], (high:u3, minus:u1)[32], (s:u3[4], part of d:u4)[4]; the parts are the nibbles of d, lowest first."""
    words, fields = _u16(blocks, 48, 56), _low_nibble_first(blocks[:, 32:48])
    parts = (words >> 12).astype(np.uint8)
    d = parts[:, 0::2] | parts[:, 1::2] << np.uint8(4)
    minus = (fields >> np.uint8(3)) * np.uint8(255)
    return Indices(d, _three_bits(words), blocks[:, 0:32], fields & np.uint8(7), minus)


_ODD = tuple(2.0 * s + 1 for s in range(16))
_QUARTERS = tuple((s + 0.5) * 0.25 for s in range(16))

CODEBOOK_TYPES: dict[str, CodebookType] = {
    "IQ2_XXS": CodebookType("IQ2_XXS", _iq2_xxs, _QUARTERS),
    "IQ2_XS": CodebookType("IQ2_XS", _iq2_xs, _QUARTERS),
    "IQ2_S": CodebookType("IQ2_S", _iq2_s, _QUARTERS),
    "IQ3_XXS": CodebookType("IQ3_XXS", _iq3_xxs, tuple(2 * q for q in _QUARTERS)),
    "IQ3_S": CodebookType("IQ3_S", _iq3_s, _ODD),
    "IQ1_S": CodebookType("IQ1_S", _iq1_s, _ODD),
    "IQ1_M": CodebookType("IQ1_S", _iq1_m, _ODD),
}


def possible_values(name: str) -> tuple[float, ...]:
    """What a value of a type can be before it meets its step, in order: at most 16 numbers."""
    levels = np.array(_LEVELS["IQ1_S" if name.startswith("IQ1") else name], np.float32)
    shift = _IQ1_SHIFT if name.startswith("IQ1") else np.float32(0)
    both = np.concatenate([levels + shift, levels - shift]) if shift else np.concatenate([levels, -levels])
    # Not `np.unique`: it loads masked arrays, which nothing else needs when a process starts.
    return tuple(sorted(set(both.ravel().tolist())))


_BITMAPS: dict[str, str] = {
    "IQ2_XXS": (
        "VRUUVRBEQUEABBREABAAAAAEQAAUAEAAAAAABAAAUBBAQREAARQEQFAEQAAQAAAFEAAAUAAAAQAAQAAAQRQEQBQUAAAEAAAEAAAE"
        "AAAAAAAABBAAAAAAAAAAABQEEBAAQAAEEQAEARAAQEAAAQAAAAAAAQQAAAAAABAEQARAAAAEAAAAABAAAAAQAAAAQAAQAAAAAAAA"
        "AAAFAQAEAABAAAAAEQAAAAAAAAAAAQAAAABAAAAAAAAUBAAAAQABBQAAAAAAEBAAAAAAAFAAAAAAAAAAAABAQQAAAUAAAAAAQAAA"
        "AAQAQAAAAAAAAAAAAAAAQAAAQAAEAAAAAAAEAAAAAAAAAAAAAAAAAAAAAQAAAAAAUBBEQRAQARQEABAAQAAAAAREAABAQAAAQEAA"
        "AQAAQBAAAQAAABAAEAAABBAAAAAAAAAAAQAAAAAAAAAAABQEABABAAAAAAAEAAAAABABBAAAAAAAAAQAAAAEABBEUAAAAAAEAQAA"
        "AQAABAAAAAAAAQAAAAAAAABAAAAAAAAAAAAAQAEAAAEAAAAAAAAAAAQAAAAAAQAAAAAEEAQAAAAEAAAAAAAAQAAAAAAAAAAEAAAA"
        "AAAAAAAAQQAAAQAAAQAAQAAAAABAAAAAAAAAQAAAABAAAAAAEQAAAAAAAAAAAAAUAAAAAAAEAAAAAAAAAAAAAAAAAAAAAAEAAAAA"
        "AAAAAAAAAAAAAAAAAAAAAAAAAAAAQEEAAAQAAEAAAAAEQAAEAAAAAAAAAAQAAAAAAAAAABREABAAQAAAAAAEAAAABAAAABAAAAQA"
        "QAAAAQAAAEAAAAAAAAAAAAAAAQAAAAAAAAAAAAABAAAAAAAAAAAEARAEAAAAAAABAEAAAAAAQAAAAAAAAAABAAAAAAAEAEAAAQAA"
        "AAAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAAAAAAAAEAAAAAAAAQAAAAAAAAAAAAAAAAAAAAAABAAAABAAAAQAAAABAAAAAAAAAAAE"
        "AAAAAAAAAAAAAAAEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAEAAAAAAAEAAAAAAAAAAAAAAAAAAAAAAAAAAA="
    ),
    "IQ2_XS": (
        "VVVVUVVFQRVFAVRVVVBFQRAFAQBUURBAQQQAAQEAUFVFQRUVARQEAFBFQQAFAQQEAABAQQAQBQAAQAAAQFUFERQEARAAQEAFAQAE"
        "AABAEAAAAQAEAQAAAAAQAVRVUVBFQUAFAQBUURBAQQAAAVAAUBEAQAAAAQAAAFBFQQBFARAEAABAQQAAAQAAAAAAQAAEAAABAAAA"
        "AAAFBQAEQAAABAAAEQAAAAAABAAAAAAAAABAAAAAAABVVRBAQQAAAQAEUBAAQBAAEAAAABAAAAEAAAAEAABEQQBAAQAAAAAAQAAA"
        "AAQQAAAAEAABAAEAAAAAAAAQQQEEAAABABAABAAAAAAAABAAAQAAARAAAAAARAEAUFVFQVUFERQEAFBFQQAFAQBEAEBAQQFAAQAA"
        "AAAAQBVFARQEABAAAQAFARAEAAAAAEAAAQEAQBAAAAAAABQEABABAQEAAAAEEAAAQQBAAAAAQAAAAAAAAAAAAFBFQRAFAQAEAABA"
        "QQQABQAAAAAAQAAAABAAAAAAAEAFAQQEABBAAAABQQAAAAAAQBAAAAAAEAAAABAAAAQEQABAQAAAAAABAAAQQAEAAAAAAAAAAAAA"
        "AABAAABAQQAAARAQAAEAUAAAAAAAAAAAAAAAABAABAAAAAEAAUAAAAAAAAAAAAAEABABAAAAABAAAAAAAAAAAAAAEAAAAAAAAAEA"
        "AAAAAAQAAAAAAAAABAAAABAQAAAAQBUFARUEAFAAAFAVAQAEEAQAAAAAAQAEAAAAQAEAQRRUABAAQABAAAAEAAAAAQAAAABAAAAE"
        "AAAAAAEAABAEAAQAAAEUAAAEBAAAAAAAAAAAAAAABAAAABAEBBAFAQAEAAEAAQAAAQAQAAAAAQAAAAAAAAAABABAAABEAAAAQRAA"
        "AAAAAAAAEAAAAAAUAAAAAAABAAAAAAAAAAAAAAQAAAAABAAAAAABAAAAAAAAEAAAABAAAAAARQEEBAAAAAAAAQAAAABAEAAAAEAU"
        "AQAQAAAAAQAEAAAAQAAAAABAAAAAAAAAAAAAAAAAAAAAAABAAAAEAEAARQAAAAAAQBAEAAAAAAAABQAAAAAABQAAAAABAAE="
    ),
    "IQ2_S": (
        "VVVVUVVFVRUFEVVVUVBFVRQFFRRUURBQVQQAEREQUFVFVVVVFVRFUVBVVRRVVRRUURBAVQQAURQEUBAAQBVVEVVVURABAUAFVQRE"
        "URBAQAAAARQQBRAAAABAAFRVUVFFVRUVURRUVVVFVRUFVRQAUBRBQQQFABQEAFBFVRRVVRRUURBAVRUFVRQEUBAAQBQFARQEABAA"
        "AEBVUQRUURBAAQAAVRQEUBAAEAAABBAEABAABAAAAABUURVRQQUEAREAVFBBQAUFARQEABAQAFEEAQAABQBEVRQFVRQEUBAAQBQF"
        "ARQEABEAAAAFAQAEAAQAAAAAERQAUBAAAEAAABUEAAAAAAAAEAAABEAAAAAEQAEAUFVVRVVVFRREUVBFVQVVVRRUURBAQRUEURQE"
        "UAAAQFVVVVRVUVBFQQBVVRRUURBQQQAAVRQEUBAAQAAAEBRVUVBFQQAEAQBUURBAQQAAAUAAUBAAQAAAAAAAAFBFVRVVVRRUUQBA"
        "VRUFVRQEUBAAQBQFARQEABQAAABVVRRUURBAQQAAVRQEUBAAQAAAABQEABEAAAAAAABUURBAQUAAAQAAUBAAQAAAAAAAABAAEAAA"
        "AABAAABERRUFURQEQBAAQBUFARQEABAAEAAEAQAEAAEAAAABURQEUBAAQAAAABQEABAQABAABAAEAAAAAAAAABAAUBAAAAAAEAAA"
        "ARAAAEAAAAAAAAAAAAAABAAAAABAQBVFERRUERBBAQBFVRRUUQBAQQBAERUAUBAAAAAAAFRVEVBFQQAFAQBUURBAQQAAAQEAUBAA"
        "UAAAAAAAABBBAQAFAQAAAEBAAQAAAQBAAAAAAAAABAAABUAAAAFFVRBUURBAQQAAERQAUBAQAAAAABQEABAAAAAAAEBUURBAQQAA"
        "AUAAUBAAQAAAAAAAERAAAAAQABAAAABAQQAQAQAAAAAAUAAAAAARAAAAAAAAAAAAAAAAQAAAEREQVBAAAAAABAEAABAAAAQAAAAQ"
        "BEAUAAAARAEAURAAQAAAAAABQBAAEAAAAAAAAAAAAAAAAAQAAAAAAEAAQAAAAAAAAAEAAAAAQAAABAAAQAEUAQAAABAAAAE="
    ),
    "IQ3_XXS": (
        "FYoFAgQAACgKBSIFAhAAARUCBYoAggAgggUgAAAAAAEACACAEIAAKIIAAAQABAAAAAAAIAAAEAAAUQAACAACAAoFChWAAQAABQIF"
        "AAAAAAAKBQIBAAAABAUAAQJAAEAAIgAAAAABAAAAABEAQAAAAiAAAAAAAAAAAAAEAAEAAAAFCkUCBAAAACoFAgEAAIgBBYIFgAEg"
        "AAACEQAAAAAAEQAAACAACAAACACAAAIAABAAAAAAAAAAAApAAAAgAAAAAgUKAAABIAQFAAECUAAAAAoBIAAABAAEAAIACAAAAAAA"
        "AAABgAAABEEABAAAIAAAABAAQAAACAAAAAAIAAABABCAAKAAiAAAAAAAAAAAABAAAAGAAQBBAIAAAAAgAAAAEAAAAAACEAAAACAA"
        "CAAAAQAAAAAAAAAAIAUAAQAAAAAABAAAAgAAAUEAQAAAIAAAABAABAAAAAQEAAAAAAgAAAABiAAAAAAEBAAAAgAAAAAAAAAAAAEA"
        "AAAAEAAEAAAAAAAQAFAAEAAAAAIAAAACAACAAAAAABAAAAAAQQAAAAAAAAAAEAAAACAAAAAABAAAAAAACAAAAAAIAAIAAAAAAKgB"
        "AAQABAAAAABAAAEAAAAABAAAIAQAAAEgAAgAAAEAAAACAAIAAAAFABAAAAAAAAAAAAEAAAAAAAAAAAAAAAA="
    ),
    "IQ3_S": (
        "p1cjCKUKBZIXI4kiEAAiBKNJIhGkCgAJCCIFShAFgCIBiBIECQIAARQARQiiAEAIQAoAAgAEAAIVAEUIABEAABerBVIAUAIESxEC"
        "CQIFAEEBpBEECSABBJIJghECAAQBKBQACkQRAAACCQIFAAIAAAAAkQBQAAAACgUCIAIABAGrVYoFKgWAKQWJJBIEAgAAkgAKgQKI"
        "ABIlAhQKBAFAAIIACSQCAAAkEAIEgAEIAAGFAAIAACACACACQAEIAQAABKoEKpQCCAIqEAoAAQABRAEEARQAAQAAAhGKAYogAAgI"
        "QgQCAAQRAAIFIAQQQAAIAEAAAAIAAAAKAAUgAAAAABEEkQQCAQABhAoEIQgiAAAKIQIIAYAEARAKBSIAAAAABQAQgAEAAAKgAAIA"
        "AAAEAAAIABAAAAEAACEAAQgCAAAEEQQAkQRAECoEAgQAAAAEAQIIQQAIAACEAYAAEAIgCBIAAQRAAAAAAARAAAAKAAAAAAAABAAA"
        "ABQABAAAAAAAACoACgAAAQABAIEAAAAQAAAEABAEIAQBARACAAEAAAAAACAACAAEAAkAABAAAAEAIAAAAAEAAAAACgAAAAAAAJEA"
        "BUABEAQABAIQACgAAAASQQIBAAIAAAQAACQACAAAIggBAAABAAAAAAQABAAAAAQAAAIAAAAAAQAAAAAAAAA="
    ),
    "IQ1_S": (
        "VSUUhaACQlEIRTGohiCKohoIKiAUhVAUgiBERSUVBaACgiCIGAAIgqADKqCIu6oKkKoLACIACqqMgqAIQFEIRSGIgFAUQlEIijAI"
        "mKAIgCoIRSEUhSBIQlUIRQEswqAgiiYAKiSoqqII4q8ICCgoAKACQiiqKCCogCAKmwi5uqggyq6Joq6qOnzr6rq7gg64IrrK0w6S"
        "AiIAIiCoiroKggIIACpK4KI7IiArogCBQIGqiigIIgEUhVAVgiAJRSFUhaAIAiOoOiCEgiBUQlEIoiAIlVAUAioIuKiCgKBIAiAI"
        "gqJoogIoqyoIhSAIgjAIRUAARSEUhaAAQlEARQEpggCKgioIoTAUBVAUgigIRSEUhSACAiCqKgAgErGKriiouqGqqHAAggoIAigi"
        "AoQAggBIgKDqsCqqwiCLuiLq2qeLi26okrAqqnKLikQMKiBIhEAoiioIqiDIzKIioq+aoOioAgACACqoiAAggKCLoqIouqCAgjIK"
        "ur64uv7roqArogiKCijqogChMgIM+qTq3u8rqC6Nvn7r+vd/v+Z9ut5p+yf/vyb6EunhiiIQqr4OhKoIsqgLgq7/uiTpg4AEYixo"
        "8qgKpCsAAioICOKqEgACgioKpiDJgomQgigAogCMgBMAgggIAGyKqqq7Aqa+iqDKAoBrly7QsukQghAuqt4oFdGlBAAKggCKgiAI"
        "AaEggqo5uiIyhKAJgBgAiqJiAoEURFEARSGsglAUQlEIqiAoqocKEioIRSEUBaAIQlEIRQEgAqBAoiIAiAAIoghqim64qqqAACAK"
        "guLIIiEIRFAUQlEJiiAVhVAUhgoIqioqgAAKQlEIRSGoAFAUQlEI4iCIggoYgioIqqKqirCLAgoqqiAogoCqCigIKACpiAIioL4L"
        "KLgIirpLsq7/uqT4rqogUihotqAw5oAKAigIImpigCAKAqqqK6rqoqmgoggIECCgiiIAgg4ARSEUhaAKQFEIRSGpBgBKqgIIpQAQ"
        "DUQUgigIRSEUBQAIgoKs8iAAAACqCigKuiDqogIAgkgJKOkUABFLRVEARQGoAlAUQlEIiCQIiCgKQAgARQEUBaACQFEIRQE="
    ),
}
