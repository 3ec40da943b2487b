"""Writes docs/numpy_coverage.md: which names of the array API, NumPy and JAX rlx has, and why not others.

    python tools/numpy_coverage.py            # writes the page
    python tools/numpy_coverage.py --check    # fails when the page is out of date

A name that is neither present nor explained here is an error, so the page cannot fall behind in silence.
"""

from __future__ import annotations

import pathlib
import sys
from types import ModuleType

import jax_coverage

import rlx.numpy as rnp

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "numpy_coverage.md"

# The Python array API standard, 2023.12.
ARRAY_API = {
    "Constants": "e inf nan newaxis pi",
    "Creation": """arange asarray empty empty_like eye from_dlpack full full_like linspace meshgrid ones ones_like tril
        triu zeros zeros_like""",
    "Dtypes": """bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128""",
    "Dtype functions": "astype can_cast finfo iinfo isdtype result_type",
    "Elementwise": """abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_invert
        bitwise_or bitwise_right_shift bitwise_xor ceil clip conj copysign cos cosh divide equal exp expm1 floor
        floor_divide greater greater_equal hypot imag isfinite isinf isnan less less_equal log log1p log2 log10
        logaddexp logical_and logical_not logical_or logical_xor maximum minimum multiply negative not_equal positive
        pow real remainder round sign signbit sin sinh square sqrt subtract tan tanh trunc""",
    "Indexing": "take",
    "Inspection": "__array_api_version__ __array_namespace_info__",
    "Linear algebra": "matmul matrix_transpose tensordot vecdot",
    "Manipulation": """broadcast_arrays broadcast_to concat expand_dims flip moveaxis permute_dims repeat reshape roll
        squeeze stack tile unstack""",
    "Searching": "argmax argmin nonzero searchsorted where",
    "Sets": "unique_all unique_counts unique_inverse unique_values",
    "Sorting": "argsort sort",
    "Statistics": "cumulative_sum max mean min prod std sum var",
    "Utilities": "all any",
    "linalg extension": """linalg.cholesky linalg.cross linalg.det linalg.diagonal linalg.eigh linalg.eigvalsh
        linalg.inv linalg.matmul linalg.matrix_norm linalg.matrix_power linalg.matrix_rank linalg.matrix_transpose
        linalg.outer linalg.pinv linalg.qr linalg.slogdet linalg.solve linalg.svd linalg.svdvals linalg.tensordot
        linalg.trace linalg.vecdot linalg.vector_norm""",
    "fft extension": """fft.fft fft.ifft fft.fftn fft.ifftn fft.rfft fft.irfft fft.rfftn fft.irfftn fft.hfft fft.ihfft
        fft.fftfreq fft.rfftfreq fft.fftshift fft.ifftshift""",
}

# The public names of NumPy 2.4, numpy.linalg and numpy.fft included.
NUMPY = """
    False_ ScalarType True_ abs absolute acos acosh add all allclose amax amin angle any append apply_along_axis
    apply_over_axes arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argpartition argsort
    argwhere around array array2string array_equal array_equiv array_repr array_split array_str asanyarray asarray
    asarray_chkfinite ascontiguousarray asfortranarray asin asinh asmatrix astype atan atan2 atanh atleast_1d atleast_2d
    atleast_3d average bartlett base_repr binary_repr bincount bitwise_and bitwise_count bitwise_invert
    bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor blackman block bmat bool bool_ broadcast
    broadcast_arrays broadcast_shapes broadcast_to busday_count busday_offset busdaycalendar byte bytes_ c_ can_cast
    cbrt cdouble ceil char character choose clip clongdouble column_stack common_type complex128 complex256 complex64
    complexfloating compress concat concatenate conj conjugate convolve copy copysign copyto corrcoef correlate cos cosh
    count_nonzero cov cross csingle ctypeslib cumprod cumsum cumulative_prod cumulative_sum datetime64
    datetime_as_string datetime_data deg2rad degrees delete diag diag_indices diag_indices_from diagflat diagonal diff
    digitize divide divmod dot double dsplit dstack dtype dtypes e ediff1d einsum einsum_path emath empty empty_like
    equal errstate euler_gamma exceptions exp exp2 expand_dims expm1 extract eye fabs fft fill_diagonal finfo fix
    flatiter flatnonzero flexible flip fliplr flipud float128 float16 float32 float64 float_power floating floor
    floor_divide fmax fmin fmod format_float_positional format_float_scientific frexp from_dlpack frombuffer fromfile
    fromfunction fromiter frompyfunc fromregex fromstring full full_like gcd generic genfromtxt geomspace get_include
    get_printoptions getbufsize geterr geterrcall gradient greater greater_equal half hamming hanning heaviside
    histogram histogram2d histogram_bin_edges histogramdd hsplit hstack hypot i0 identity iinfo imag index_exp indices
    inexact inf info inner insert int16 int32 int64 int8 int_ intc integer interp intersect1d intp invert is_busday
    isclose iscomplex iscomplexobj isdtype isfinite isfortran isin isinf isnan isnat isneginf isposinf isreal isrealobj
    isscalar issubdtype iterable ix_ kaiser kron lcm ldexp left_shift less less_equal lexsort lib linalg linspace
    little_endian load loadtxt log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor
    logspace long longdouble longlong ma mask_indices matmul matrix matrix_transpose matvec max maximum
    may_share_memory mean median memmap meshgrid mgrid min min_scalar_type minimum mintypecode mod modf moveaxis
    multiply nan nan_to_num nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmedian nanmin nanpercentile
    nanprod nanquantile nanstd nansum nanvar ndarray ndenumerate ndim ndindex nditer negative nested_iters newaxis
    nextafter nonzero not_equal number object_ ogrid ones ones_like outer packbits pad partition percentile permute_dims
    pi piecewise place poly poly1d polyadd polyder polydiv polyfit polyint polymul polynomial polysub polyval positive
    pow power printoptions prod promote_types ptp put put_along_axis putmask quantile r_ rad2deg radians random ravel
    ravel_multi_index real real_if_close rec recarray reciprocal record remainder repeat require reshape resize
    result_type right_shift rint roll rollaxis roots rot90 round row_stack s_ save savetxt savez savez_compressed
    sctypeDict searchsorted select set_printoptions setbufsize setdiff1d seterr seterrcall setxor1d shape shares_memory
    short show_config show_runtime sign signbit signedinteger sin sinc single sinh size sort sort_complex spacing split
    sqrt square squeeze stack std str_ strings subtract sum swapaxes take take_along_axis tan tanh tensordot test
    testing tile timedelta64 trace transpose trapezoid tri tril tril_indices tril_indices_from trim_zeros triu
    triu_indices triu_indices_from true_divide trunc typecodes typename typing ubyte ufunc uint uint16 uint32 uint64
    uint8 uintc uintp ulong ulonglong union1d unique unique_all unique_counts unique_inverse unique_values unpackbits
    unravel_index unsignedinteger unstack unwrap ushort vander var vdot vecdot vecmat vectorize void vsplit vstack where
    zeros zeros_like
    linalg.LinAlgError linalg.cholesky linalg.cond linalg.cross linalg.det linalg.diagonal linalg.eig linalg.eigh
    linalg.eigvals linalg.eigvalsh linalg.inv linalg.lstsq linalg.matmul linalg.matrix_norm linalg.matrix_power
    linalg.matrix_rank linalg.matrix_transpose linalg.multi_dot linalg.norm linalg.outer linalg.pinv linalg.qr
    linalg.slogdet linalg.solve linalg.svd linalg.svdvals linalg.tensordot linalg.tensorinv linalg.tensorsolve
    linalg.trace linalg.vecdot linalg.vector_norm
    fft.fft fft.fft2 fft.fftfreq fft.fftn fft.fftshift fft.hfft fft.ifft fft.ifft2 fft.ifftn fft.ifftshift fft.ihfft
    fft.irfft fft.irfft2 fft.irfftn fft.rfft fft.rfft2 fft.rfftfreq fft.rfftn
"""

# The public names of jax.numpy 0.10, its linalg and fft included.
JAX = """
    ComplexWarning abs absolute acos acosh add all allclose amax amin angle any append apply_along_axis apply_over_axes
    arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argpartition argsort argwhere around array
    array_equal array_equiv array_repr array_split array_str asarray asin asinh astype atan atan2 atanh atleast_1d
    atleast_2d atleast_3d average bartlett bfloat16 bincount bitwise_and bitwise_count bitwise_invert bitwise_left_shift
    bitwise_not bitwise_or bitwise_right_shift bitwise_xor blackman block bool bool_ broadcast_arrays broadcast_shapes
    broadcast_to c_ can_cast cbrt cdouble ceil character choose clip column_stack complex128 complex64 complex_
    complexfloating compress concat concatenate conj conjugate convolve copy copysign corrcoef correlate cos cosh
    count_nonzero cov cross csingle cumprod cumsum cumulative_prod cumulative_sum deg2rad degrees delete diag
    diag_indices diag_indices_from diagflat diagonal diff digitize divide divmod dot double dsplit dstack dtype e
    ediff1d einsum einsum_path empty empty_like equal euler_gamma exp exp2 expand_dims expm1 extract eye fabs fft
    fill_diagonal finfo flatnonzero flexible flip fliplr flipud float16 float32 float4_e2m1fn float64 float6_e2m3fn
    float6_e3m2fn float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz
    float8_e8m0fnu float_ float_power floating floor floor_divide fmax fmin fmod frexp from_dlpack frombuffer fromfile
    fromfunction fromiter frompyfunc fromstring full full_like gcd generic geomspace get_printoptions gradient greater
    greater_equal hamming hanning heaviside histogram histogram2d histogram_bin_edges histogramdd hsplit hstack hypot i0
    identity iinfo imag index_exp indices inexact inf inner insert int1 int16 int2 int32 int4 int64 int8 int_ integer
    interp intersect1d invert isclose iscomplex iscomplexobj isdtype isfinite isin isinf isnan isneginf isposinf isreal
    isrealobj isscalar issubdtype iterable ix_ kaiser kron lcm ldexp left_shift less less_equal lexsort linalg linspace
    load log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logspace mask_indices
    matmul matrix_transpose matvec max maximum mean median meshgrid mgrid min minimum mod modf moveaxis multiply nan
    nan_to_num nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmedian nanmin nanpercentile nanprod
    nanquantile nanstd nansum nanvar ndarray ndim negative newaxis nextafter nonzero not_equal number object_ ogrid ones
    ones_like outer packbits pad partition percentile permute_dims pi piecewise place poly polyadd polyder polydiv
    polyfit polyint polymul polysub polyval positive pow power printoptions prod promote_types ptp put put_along_axis
    quantile r_ rad2deg radians ravel ravel_multi_index real reciprocal remainder repeat reshape resize result_type
    right_shift rint roll rollaxis roots rot90 round s_ save savez searchsorted select set_printoptions setdiff1d
    setxor1d shape sign signbit signedinteger sin sinc single sinh size sort sort_complex spacing split sqrt square
    squeeze stack std subtract sum swapaxes take take_along_axis tan tanh tensordot tile trace transpose trapezoid tri
    tril tril_indices tril_indices_from trim_zeros triu triu_indices triu_indices_from true_divide trunc ufunc uint
    uint1 uint16 uint2 uint32 uint4 uint64 uint8 union1d unique unique_all unique_counts unique_inverse unique_values
    unpackbits unravel_index unsignedinteger unstack unwrap vander var vdot vecdot vecmat vectorize vsplit vstack where
    zeros zeros_like linalg.cholesky linalg.cond linalg.cross linalg.det linalg.diagonal linalg.eig linalg.eigh
    linalg.eigvals linalg.eigvalsh linalg.inv linalg.lstsq linalg.matmul linalg.matrix_norm linalg.matrix_power
    linalg.matrix_rank linalg.matrix_transpose linalg.multi_dot linalg.norm linalg.outer linalg.pinv linalg.qr
    linalg.slogdet linalg.solve linalg.svd linalg.svdvals linalg.tensordot linalg.tensorinv linalg.tensorsolve
    linalg.trace linalg.vecdot linalg.vector_norm fft.fft fft.fft2 fft.fftfreq fft.fftn fft.fftshift fft.hfft fft.ifft
    fft.ifft2 fft.ifftn fft.ifftshift fft.ihfft fft.irfft fft.irfft2 fft.irfftn fft.rfft fft.rfft2 fft.rfftfreq
    fft.rfftn
"""

# Why a name of jax.numpy is missing that NumPy does not have.
ABSENT_FROM_JAX = {
    "element types that programs do not have": """float6_e2m3fn float6_e3m2fn float8_e3m4 float8_e4m3 float8_e4m3b11fnuz
        float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu int1 int2 uint1 uint2""",
    "warnings of NumPy": "ComplexWarning",
}

# Why a name of NumPy is missing.
ABSENT = {
    "the size or dtype of the result depends on values": "real_if_close min_scalar_type",
    "it writes into an argument; use x.at[...] or where": "copyto putmask",
    "element types that programs do not have (text, objects, records, dates, long double)": """bytes_ busday_count
        busday_offset busdaycalendar char character clongdouble complex256 datetime64 datetime_as_string datetime_data
        flexible float128 is_busday isnat longdouble object_ rec recarray record str_ strings timedelta64 void""",
    "C types whose width differs between platforms; use int32 or int64": "long ulong",
    "files and text; read with NumPy, then asarray": """fromregex genfromtxt loadtxt memmap savetxt savez_compressed""",
    "printing of arrays; NumPy's own functions take rlx arrays": """array2string base_repr binary_repr
        format_float_positional format_float_scientific""",
    "settings and facts of NumPy itself": """ctypeslib errstate exceptions get_include getbufsize geterr geterrcall info
        lib little_endian setbufsize seterr seterrcall show_config show_runtime test testing typing""",
    "memory layout, which programs do not show": """asfortranarray isfortran may_share_memory require shares_memory""",
    "Python loops over elements; write whole-array code, or rlx.scan and rlx.vmap": """broadcast flatiter
        frompyfunc ndenumerate ndindex nditer nested_iters ufunc""",
    "other kinds of arrays and older interfaces": """asarray_chkfinite asmatrix bmat emath ma matrix poly1d
        polynomial""",
    "helpers of NumPy's type system; use result_type and isdtype": """ScalarType common_type dtypes mintypecode
        sctypeDict typecodes typename True_ False_""",
    "randomness needs explicit keys; see rlx.random": "random",
    "errors are children of rlx.errors.RlxError": "linalg.LinAlgError",
}

# The modules that are names for users; the others are how the package is built.
_MODULES = ("linalg", "fft")


def present(name: str) -> bool:
    home: object = rnp
    for part in name.split("."):
        if not hasattr(home, part):
            return False
        home = getattr(home, part)
    return not isinstance(home, ModuleType) or name in _MODULES


def page() -> str:
    """The text of the page; an error when a missing name has no reason or a present one has."""
    reasons = {name: reason for reason, names in ABSENT.items() for name in names.split()}
    numpy_names = NUMPY.split()
    missing = [n for n in numpy_names if not present(n)]
    unexplained = sorted(set(missing) - set(reasons))
    stale = sorted(set(reasons) - set(missing))
    jax_names = JAX.split()
    jax_missing = [n for n in jax_names if not present(n)]
    jax_reasons = {name for names in ABSENT_FROM_JAX.values() for name in names.split()}
    unexplained += sorted({*jax_missing} - {*reasons, *jax_reasons})
    stale += sorted(jax_reasons - {*jax_missing})
    if unexplained or stale:
        raise SystemExit(f"numpy_coverage: give a reason for {unexplained}; remove the reason for {stale}")
    standard = [n for names in ARRAY_API.values() for n in names.split()]
    have = [n for n in standard if present(n)]
    lines = [
        "# What `rlx.numpy` covers",
        "",
        "Written by `tools/numpy_coverage.py`; a test keeps it up to date. `import rlx.numpy as rnp`.",
        "",
        f"| | names | present |\n|---|---|---|\n| array API standard 2023.12 | {len(standard)} | {len(have)} |",
        f"| NumPy 2.4, with `linalg` and `fft` | {len(numpy_names)} | {len(numpy_names) - len(missing)} |",
        f"| jax.numpy 0.10, with `linalg` and `fft` | {len(jax_names)} | {len(jax_names) - len(jax_missing)} |",
        "",
        "Functions whose result has a size that depends on values (`nonzero`, `argwhere`, `flatnonzero`, `unique*`,",
        "`compress`, `extract`, set operations, `bincount`) work on known values as in NumPy; inside a program they",
        "take `size=` (or `length=`), an upper bound, and fill what is left.",
        "",
        "## The array API standard",
        "",
    ]
    for group, names in ARRAY_API.items():
        shown = [f"`{n}`" if present(n) else f"~~`{n}`~~" for n in names.split()]
        lines.append(f"- {group}: {' '.join(shown)}")
    lines += ["", "## NumPy: present", "", " ".join(f"`{n}`" for n in numpy_names if present(n))]
    lines += ["", "## NumPy: absent", "", "| why | names |", "|---|---|"]
    for reason, names in ABSENT.items():
        lines.append(f"| {reason} | {' '.join(f'`{n}`' for n in sorted(names.split()))} |")
    only_jax = [n for n in jax_names if n not in numpy_names]
    lines += ["", "## jax.numpy: what NumPy has not", "", " ".join(f"`{n}`" for n in only_jax if present(n))]
    lines += ["", "| why absent | names |", "|---|---|"]
    for reason, names in ABSENT_FROM_JAX.items():
        lines.append(f"| {reason} | {' '.join(f'`{n}`' for n in sorted(names.split()))} |")
    extra = sorted(own_names() - {*numpy_names, *standard, *jax_names})
    lines += ["", *jax_coverage.section()]
    lines += ["## Only here", "", " ".join(f"`{n}`" for n in extra), ""]
    return "\n".join(lines)


def own_names() -> set[str]:
    """The public names of rlx.numpy that are not its modules."""
    return {n for n, value in vars(rnp).items() if not n.startswith("_") and not isinstance(value, ModuleType)}


def main() -> int:
    text = page()
    if "--check" in sys.argv:
        if PAGE.read_text() != text:
            print("docs/numpy_coverage.md is out of date; run: python tools/numpy_coverage.py")
            return 1
        return 0
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
