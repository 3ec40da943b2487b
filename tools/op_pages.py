"""The pages that are read off the registry of ops: docs/ops.md, and the table of docs/primitives.md."""

from __future__ import annotations

import enum
import inspect
import re
import sys
from collections.abc import Iterator
from functools import partial

import rlx.hir
import rlx.ops
import rlx.sparse  # noqa: F401  (all three register ops)
from rlx.ir.dims import collect_constraints
from rlx.ir.leaves import Constant, Input, Param, Project
from rlx.ir.op import OP_CLASSES, REGISTRY, NoRule, Op
from rlx.ir.text.graph_text import show_value
from rlx.ops.define.rules import SharedInBatch

LEAVES = (Input, Param, Constant, Project)
RULES = ("jvp", "vjp", "batch")

# Why an op is primitive: reason -> mnemonics. The generator refuses a primitive without a reason.
WHY_PRIMITIVE = {
    "Where values enter a program, and how one of several results is read.": "input param constant project",
    "One instruction (or a short fixed sequence) per element on every target.": """add sub mul div max min and or xor
        shift_left shift_right neg abs sqrt eq ne lt le gt ge where cast bitcast""",
    "One rounding of a float to a whole number, an instruction on most targets.": "round floor ceil trunc",
    "C's `fmod`: exact, so it cannot be written as `a - b * trunc(a / b)`, which rounds.": "rem",
    "A function with its own polynomial and a stated error bound; from other functions it would lose digits.": """exp
        log expm1 log1p sin cos atan tanh erf erfc pow""",
    "The only ways between complex numbers and their parts.": "real imag make_complex",
    "Complex numbers as the pairs that they are in memory; compilers put it there.": "as_reals as_complex",
    "Pure index arithmetic: kernels fold it into their addresses and copy nothing, or copy once.": """reshape transpose
        expand slice concat pad reverse""",
    "Reading and writing at places that only the run knows.": """gather_nd scatter_nd dynamic_slice
        dynamic_update_slice""",
    "Values made from sizes; there is nothing smaller to make them from.": "iota dim_value",
    "A join over an axis; its order of summation belongs to the engine.": """reduce_sum reduce_max reduce_min
        reduce_prod reduce_any reduce_all argmax argmin""",
    "A join over every prefix or window; from smaller ops it would cost a factor of the length.": """cumulative_sum
        cumulative_prod cumulative_max cumulative_min cumulative_logsumexp reduce_window_sum reduce_window_max
        reduce_window_min reduce_window_prod reduce_window_any reduce_window_all""",
    "An order that depends on values.": "sort",
    "The sum of products that hardware has units for, and that decides the speed of most models.": "matmul conv",
    "An O(n log n) algorithm; from sums of products it would be O(n²).": "fft",
    "A factorisation or solve with its own pivoting and iteration; the rest of linear algebra follows from these.": """
        cholesky qr svd eigh lu triangular_solve batched_dense_solve eig schur""",
    "A function of a matrix by its Schur form, which cannot be written as a sum of products.": "sqrtm logm",
    "A step of these as kernels do it, without an error to raise; compilers put it there.": """cholesky_factor
        reflectors reflected_basis orthogonal_rows pair_lu pair_reflectors pair_basis pair_bidiagonal hessenberg
        schur_steps split_pairs triangular_vectors tridiagonalized tridiagonal_rotations
        bidiagonalized bidiagonal_rotations rotated_rows small_cholesky small_solve
        lu_step merged_poles secular_roots secular_weights merge_vectors""",
    "A transform as kernels do it, with factors that were planned; compilers put it there.": """fft_lines fft_halves
        fft_real_lines""",
    "A step of a sort, a search or a running sum of long rows, as blocks of a GPU do it; compilers put it there.": """
        radix_counts radix_places inverse_order top_of_parts running_from""",
    "Control flow: a body that runs as often as values say.": "if while scan",
    "A value that depends on other participants.": """psum pmean pmax pmin all_gather reduce_scatter all_to_all ppermute
        axis_index""",
    "An effect outside of the program.": "debug_print runtime_assert require_factors host_callback",
    "Meaning that users register.": "custom",
    "Stored formats that are decoded bit by bit.": "dequant_moe_weights",
    "A weight as a kernel wants to find it in memory: laid out once, when weights are set.": """quant_panels int8_panels
        int8_lines int16_panels""",
    "A product or lookup that decodes such a weight while it reads, and never holds it whole.": """panel_matmul
        panel_gather expert_matmul""",
    "A product of bytes, or of what windows see in a picture, as kernels form it; compilers put it there.": """
        byte_matmul window_matmul window_product window_gradient pixel_matmul channel_windows code_windows""",
    "Rows by the expert that each has chosen: an order that depends on values, found once for all products.": """
        expert_route""",
    "Products with matrices that rows choose; gathered, the matrices would be stored once for each row.": """
        routed_matmul""",
    "Codes of 8 or 16 bits and their exact products in whole numbers, for which hardware has dot-product units.": """
        int8_blocks int8_block_matmul int8_expert_matmul int8_matmul int16_rows int16_matmul""",
    "Attention with what its gradients need, and these, block by block: no kernel of others has such results.": """
        attention_with_logs attention_gradients""",
    "Attention in two steps, parts of its keys and their sum, so that threads share a long cache.": """attention_parts
        attention_join""",
    "Products with a sparse matrix and their derivatives: rows of entries at places that only the run knows.": """
        csr_matmul csr_transposed_matmul csr_sampled_product csr_masked_product csr_transpose csr_row_ids""",
    "A sparse factorisation or substitution, row after row; sparse solvers are made of these.": """csr_triangular_solve
        csr_incomplete_lu csr_incomplete_cholesky csr_direct_solve panel_cholesky""",
    "A step of splatting as kernels do it: loops over tiles whose lists depend on values; compilers put it there.": """
        splat_boxes splat_tile_counts splat_tile_lists splat_blend splat_pulls splat_gather""",
    "A promise to the compiler not to merge what is on its two sides.": "barrier",
}


def own_classes() -> dict[str, type[Op]]:
    """The op classes of the package, without those that users or tests have registered."""
    return {name: cls for name, cls in OP_CLASSES.items() if cls.__module__.startswith("rlx.")}


def mnemonics() -> dict[str, list[str]]:
    """Class name -> how program text calls its ops."""
    found: dict[str, list[str]] = {name: [] for name in own_classes()}
    for mnemonic, make in REGISTRY.items():
        cls = make.func if isinstance(make, partial) else make
        if isinstance(cls, type) and cls.__name__ in found:
            found[cls.__name__].append(mnemonic)
    return found


def primitive_mnemonics(cls: type[Op]) -> set[str]:
    """Families decide by kind what is primitive; the samples show every kind."""
    if issubclass(cls, LEAVES):
        return {cls.name}
    return {sample.op.mnemonic for sample in cls.samples() if sample.op.is_primitive}


def meaning(documented: object) -> str:
    """The first paragraph of a docstring on one line, with the formula that it announces; formulas are not Markdown."""
    first, *rest = [" ".join(paragraph.split()) for paragraph in (inspect.getdoc(documented) or "").split("\n\n")]
    text = f"{first} {rest[0]}" if first.endswith(":") and rest else first
    spans = text.split("`")
    # Every second part stands in backquotes, where nothing has to be escaped.
    return "`".join(part if i % 2 else re.sub(r"([*<\[])", r"\\\1", part) for i, part in enumerate(spans))


def cell(text: str) -> str:
    return text.replace("|", "\\|")


# One row


def operands(cls: type[Op]) -> list[str]:
    names = []
    for parameter in list(inspect.signature(cls.infer).parameters.values())[1:]:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names.append(f"{parameter.name}...")
        else:
            names.append(parameter.name if parameter.default is parameter.empty else f"[{parameter.name}]")
    return ["operand"] if issubclass(cls, Project) else names


def result_counts(cls: type[Op]) -> str:
    """How many results the samples have: `1`, `2` or `1 to 3`; an op with a body has those of the body."""
    if any("Graph" in attribute for attribute in attributes(cls)):
        return "those of the body"
    counts = {1} if issubclass(cls, LEAVES) else set()
    for sample in () if counts else cls.samples():
        with collect_constraints([]):
            inferred = sample.op.infer(*sample.shapes(sample.dtypes[0]))
        counts.add(len(inferred) if isinstance(inferred, tuple) else 1)
    return str(*counts) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"


def attributes(cls: type[Op]) -> list[str]:
    annotations: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        annotations |= inspect.get_annotations(base)
    shown = []
    for field in cls._fields:
        if field == cls._family_field:
            continue
        default = f" = {show_value(cls._defaults[field])}" if field in cls._defaults else ""
        shown.append(f"{field}: {annotations[field]}{default}")
    return shown


def signature(cls: type[Op]) -> str:
    braces = f" {{{', '.join(attributes(cls))}}}" if attributes(cls) else ""
    return f"`({', '.join(operands(cls))}){braces}` → {result_counts(cls)}"


def form(cls: type[Op], names: list[str]) -> str:
    """Primitive, block, or decomposed; with the exceptions in a family."""
    effect = ", effect" if cls.effect is True else ""
    if cls.is_block:
        return "block"
    primitive = primitive_mnemonics(cls)
    rest = [n for n in names if n not in primitive]
    if not rest:
        return f"primitive{effect}"
    if not primitive:
        return f"decomposes{effect}"
    return f"primitive, but {' '.join(f'`{n}`' for n in rest)} decompose"


def rule_state(cls: type[Op], rule: str) -> str:
    """native, linear, derived, refused with its reason, or missing; leaves are handled by the transforms themselves."""
    stated = getattr(cls, rule)
    if issubclass(cls, LEAVES):
        return "—"
    if isinstance(stated, NoRule):
        return f"refused: {stated.reason}"
    if stated is not None:
        return f"native{'*' if chooses(cls, rule) else ''}"
    if rule == "jvp" and cls.multilinear_in:
        return f"linear in each of {_operand_names(cls, cls.multilinear_in)}"
    if rule == "jvp" and cls.linear_in:
        return f"linear in {_operand_names(cls, cls.linear_in)}"
    return "missing" if cls.decompose is None else "derived"


def chooses(cls: type[Op], rule: str) -> bool:
    """Whether the op takes another form first for some operands."""
    return hasattr(cls, "form_for") and (rule == "batch" or not issubclass(cls, SharedInBatch))


def _operand_names(cls: type[Op], indices: tuple[int, ...] | str) -> str:
    if isinstance(indices, str):
        return "all operands"
    names = operands(cls)
    return ", ".join(f"`{names[i].strip('[]') if i < len(names) else names[-1]}`" for i in indices)


def row(cls: type[Op], names: list[str]) -> str:
    called = " ".join(f"`{n}`" for n in names)
    own = "" if len(names) == 1 and names[0].replace("_", "") == cls.__name__.lower() else f" ({cls.__name__})"
    columns = [f"{called}{own}", meaning(cls), signature(cls), form(cls, names), *(rule_state(cls, r) for r in RULES)]
    return f"| {' | '.join(cell(c) for c in columns)} |"


# The page


def ops_page(note: str) -> str:
    names = mnemonics()
    by_module: dict[str, list[type[Op]]] = {}
    for cls in own_classes().values():
        by_module.setdefault(cls.__module__, []).append(cls)
    lines = [note, "# Every op", "", *_introduction(names), *_summary()]
    # In an order that does not depend on what was imported first.
    for module, classes in sorted(by_module.items()):
        path = f"src/{module.replace('.', '/')}.py"
        lines += ["", f"## [`{path}`](../{path})", "", cell(meaning(sys.modules[module])), ""]
        lines += ["| op | meaning | operands, attributes → results | form | jvp | vjp | batch |", f"|{'---|' * 7}"]
        lines += [row(cls, names[cls.__name__]) for cls in classes]
    return "\n".join([*lines, *_attribute_types()]) + "\n"


def _introduction(names: dict[str, list[str]]) -> list[str]:
    classes = own_classes()
    primitive = sum(len(primitive_mnemonics(c)) for c in classes.values())
    blocks = sum(c.is_block for c in classes.values())
    return [
        f"{len(classes)} op classes with {sum(map(len, names.values()))} names in program text; {primitive} names are "
        f"primitive ([why](primitives.md)), {blocks} classes are HIR blocks. A name that is not its class's own in "
        "snake_case is followed by the class.",
        "",
        "Operands in `[ ]` are optional, `xs...` stands for any number. An attribute with `=` has that default. After "
        "the arrow stands the number of results; where it varies, as the samples of the op show it.",
        "",
        "- **form**: a *primitive* has kernels; an op that *decomposes* is built from others where an engine has no "
        "kernel for it; a *block* is lowered by the policy of its HIR module.",
        "- **jvp, vjp, batch** (forward mode, reverse mode, `vmap`): *native*, the class has the rule; *native\\**, it "
        "takes another form first for some operands; *linear*, the derivative is the op itself on tangents; "
        "*derived*, from the decomposition; *refused*, and why; *missing*, not written yet.",
    ]


def _summary() -> Iterator[str]:
    states = ("native", "linear", "derived", "refused", "missing")
    yield from ("", f"| rule | {' | '.join(states)} |", "|---|---|---|---|---|---|")
    for rule in RULES:
        found = [rule_state(cls, rule) for cls in own_classes().values()]
        yield f"| {rule} | {' | '.join(str(sum(s.startswith(state) for s in found)) for state in states)} |"


def _attribute_types() -> Iterator[str]:
    """The enumerations that attributes are written with, and their values."""
    found: dict[str, type[enum.StrEnum]] = {}
    for cls in own_classes().values():
        for base in cls.__mro__:
            for annotation in inspect.get_annotations(base).values():
                name = str(annotation).removesuffix(" | None")
                value = vars(sys.modules[base.__module__]).get(name)
                if isinstance(value, type) and issubclass(value, enum.StrEnum):
                    found[name] = value
    yield from ("", "## Attribute types", "", "| type | meaning | values |", "|---|---|---|")
    for name in sorted(found):
        values = " ".join(f"`{v}`" for v in found[name])
        yield f"| `{name}` | {cell(meaning(found[name]))} | {values} |"


def primitives_table() -> str:
    """The table of docs/primitives.md; an error when a primitive has no reason or a reason no primitive."""
    primitive = {m for cls in own_classes().values() for m in primitive_mnemonics(cls)}
    reasons = {m for names in WHY_PRIMITIVE.values() for m in names.split()}
    if primitive != reasons:
        raise SystemExit(
            f"tools/op_pages.py: say in WHY_PRIMITIVE why {sorted(primitive - reasons)} are primitive; "
            f"remove {sorted(reasons - primitive)}"
        )
    lines = ["| primitives | why |", "|---|---|"]
    for reason, names in WHY_PRIMITIVE.items():
        lines.append(f"| {' '.join(f'`{n}`' for n in names.split())} | {reason} |")
    return "\n".join(lines)
