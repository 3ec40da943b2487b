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

from rlx.ir.block_fields import F32, U8, bit_pairs, bits, f16, nibbles

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


class Parts(NamedTuple):
    """Blocks as steps f32[blocks, groups] and values f32[blocks, groups, n]; an element is step·value."""

    steps: F32
    values: F32


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
def _sign_bytes() -> U8:
    """Seven sign bits, and an eighth that makes the number of minus signs even."""
    codes: U8 = np.arange(128, dtype=np.uint8)
    ones = np.unpackbits(codes[:, None], axis=1).sum(axis=1, dtype=np.uint8)
    return codes | (ones & 1) << 7


def _signs(codes: U8) -> F32:
    """-1 where a bit is set, else 1: u8[..., m] -> f32[..., 8m]."""
    return 1 - 2 * np.unpackbits(codes, axis=-1, bitorder="little").astype(np.float32)


def _u16(blocks: U8, start: int, stop: int) -> U16:
    return np.ascontiguousarray(blocks[:, start:stop]).view("<u2").astype(np.uint16, copy=False)


def _u32(blocks: U8, start: int, stop: int) -> U32:
    return np.ascontiguousarray(blocks[:, start:stop]).view("<u4").astype(np.uint32, copy=False)


def _seven_bit_signs(words: U32) -> F32:
    """Four sign fields of seven bits in the low 28 bits of each word: u32[blocks, m] -> f32[blocks, 32m]."""
    fields = words[:, :, None] >> np.array([0, 7, 14, 21], np.uint32) & 127
    return _signs(_sign_bytes()[fields].reshape(len(words), -1))


def _signed(steps: F32, magnitudes: F32, signs: F32) -> Parts:
    """Runs of magnitudes with their signs, as many to a step as there are."""
    return Parts(steps, magnitudes.reshape(*steps.shape, -1) * signs.reshape(*steps.shape, -1))


def _low_nibble_first(codes: U8) -> U8:
    """u8[blocks, m] -> u8[blocks, 2m], the two nibbles of a byte side by side."""
    return nibbles(codes[:, :, None]).reshape(len(codes), -1)


def parts_iq2_xxs(blocks: U8) -> Parts:
    """d:f16, (entries:u8[4], signs:u7[4] and s:u4 in a u32)[8] -> d·(s + 1/2)/4 · entry · sign."""
    words = _u32(blocks, 2, 66).reshape(-1, 8, 2)
    entries = blocks[:, 2:66].reshape(-1, 8, 8)[:, :, :4]
    steps = f16(blocks, 0) * (np.float32(0.5) + (words[:, :, 1] >> 28).astype(np.float32)) * np.float32(0.25)
    return _signed(steps, codebook("IQ2_XXS")[entries], _seven_bit_signs(words[:, :, 1]))


def parts_iq2_xs(blocks: U8) -> Parts:
    """d:f16, (entry:u9, signs:u7)[32], s:u4[16] -> d·(s + 1/2)/4 · entry · sign."""
    words = _u16(blocks, 2, 66)
    steps = f16(blocks, 0) * (np.float32(0.5) + _low_nibble_first(blocks[:, 66:74])) * np.float32(0.25)
    return _signed(steps, codebook("IQ2_XS")[words & 511], _signs(_sign_bytes()[words >> 9]))


def parts_iq2_s(blocks: U8) -> Parts:
    """d:f16, low:u8[32], signs:u8[32], high:u2[32], s:u4[16] -> d·(s + 1/2)/4 · entry(low + 256·high) · sign."""
    high = bit_pairs(blocks[:, 66:74]).swapaxes(1, 2).reshape(-1, 32).astype(np.uint16)
    steps = f16(blocks, 0) * (np.float32(0.5) + _low_nibble_first(blocks[:, 74:82])) * np.float32(0.25)
    return _signed(steps, codebook("IQ2_S")[blocks[:, 2:34] | high << 8], _signs(blocks[:, 34:66]))


def parts_iq3_xxs(blocks: U8) -> Parts:
    """d:f16, entry:u8[64], (signs:u7[4], s:u4)[8] -> d·(s + 1/2)/2 · entry · sign."""
    words = _u32(blocks, 66, 98)
    steps = f16(blocks, 0) * (np.float32(0.5) + (words >> 28).astype(np.float32)) * np.float32(0.5)
    return _signed(steps, codebook("IQ3_XXS")[blocks[:, 2:66]], _seven_bit_signs(words))


def parts_iq3_s(blocks: U8) -> Parts:
    """d:f16, low:u8[64], high:u1[64], signs:u8[32], s:u4[8] -> d·(2·s + 1) · entry(low + 256·high) · sign."""
    high = bits(blocks[:, 66:74]).astype(np.uint16)
    steps = f16(blocks, 0) * (1 + 2 * _low_nibble_first(blocks[:, 106:110])).astype(np.float32)
    return _signed(steps, codebook("IQ3_S")[blocks[:, 2:66] | high << 8], _signs(blocks[:, 74:106]))


def parts_iq1_s(blocks: U8) -> Parts:
    """d:f16, low:u8[32], (high:u3[4], s:u3, minus:u1)[8] -> d·(2·s + 1) · (entry(low + 256·high) ± 1/8)."""
    words = _u16(blocks, 34, 50)
    high = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(-1, 32)
    steps = f16(blocks, 0) * (2 * (words >> 12 & 7) + 1).astype(np.float32)
    shift = np.where(words >> 15 == 1, -_IQ1_SHIFT, _IQ1_SHIFT)
    entries = codebook("IQ1_S")[blocks[:, 2:34] | high << 8].reshape(-1, 8, 32)
    return Parts(steps, entries + shift[:, :, None])


def parts_iq1_m(blocks: U8) -> Parts:
    """low:u8[32], (high:u3, minus:u1)[32], (s:u3[4], part of d:u4)[4] -> d·(2·s + 1) · (entry(low + 256·high) ± 1/8).

    The four parts are the nibbles of d:f16, lowest first.
    """
    words = _u16(blocks, 48, 56)
    parts = (words >> 12) << np.array([0, 4, 8, 12], np.uint16)
    d = np.bitwise_or.reduce(parts, axis=1).view(np.float16).astype(np.float32)[:, None]
    scales = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(-1, 16)
    steps = d * (2 * scales + 1).astype(np.float32)
    fields = _low_nibble_first(blocks[:, 32:48])
    shift = np.where(fields & 8, -_IQ1_SHIFT, _IQ1_SHIFT)[:, :, None]
    entries = codebook("IQ1_S")[blocks[:, 0:32] | (fields & 7).astype(np.uint16) << 8]
    return Parts(steps, (entries + shift).reshape(-1, 16, 16))


def decoder(parts: Callable[[U8], Parts]) -> Callable[[U8], F32]:
    """The decoder of a type: every step times its run of values."""

    def decode(blocks: U8) -> F32:
        steps, values = parts(blocks)
        return (steps[:, :, None] * values).reshape(len(blocks), -1)

    return decode


def possible_values(name: str) -> tuple[float, ...]:
    """What a value of a type can be before it meets its step, in order: at most 16 numbers."""
    levels = np.array(_LEVELS["IQ1_S" if name.startswith("IQ1") else name], np.float32)
    shift = _IQ1_SHIFT if name.startswith("IQ1") else np.float32(0)
    both = np.concatenate([levels + shift, levels - shift]) if shift else np.concatenate([levels, -levels])
    return tuple(float(v) for v in np.unique(both))


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
