"""`rewrite(kernel, rule)`: a copy of a kernel in which a rule may replace pure operations."""

from __future__ import annotations

from collections.abc import Callable

from rlx.kernels.builder import KernelBuilder
from rlx.kernels.loop_ir import Atomic, Barrier, Block, Const, For, If, Kernel, Let, Load, Statement, Store, Value

# Given the builder of the copy, the operation and its already copied operands: the replacement, or None to keep it.
Rule = Callable[[KernelBuilder, Let, tuple[Value, ...]], Value | None]


def rewrite(kernel: Kernel, rule: Rule) -> Kernel:
    copy = KernelBuilder(kernel.name)
    values = copy.adopt(kernel)
    _Copier(copy, rule, values).block(kernel.body)
    return copy.build()


class _Copier:
    def __init__(self, builder: KernelBuilder, rule: Rule, values: dict[Value, Value]) -> None:
        self.builder = builder
        self.rule = rule
        self.values = values

    def new(self, value: Value) -> Value:
        return self.builder.const(value.literal, value.type) if isinstance(value, Const) else self.values[value]

    def maybe(self, value: Value | None) -> Value | None:
        return None if value is None else self.new(value)

    def news(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(map(self.new, values))

    def block(self, block: Block) -> tuple[Value, ...]:
        for statement in block.statements:
            self.statement(statement)
        return self.news(block.yields)

    def statement(self, statement: Statement) -> None:
        k = self.builder
        match statement:
            case Let(result, op, args, attr):
                new_args = self.news(args)
                replaced = self.rule(k, statement, new_args)
                self.values[result] = replaced if replaced is not None else k.pure(op, new_args, attr)
            case Load(result, buffer, offset, mask, other, align):
                copied = Value(k, result.type, result.name)
                k.append(Load(copied, buffer, self.new(offset), self.maybe(mask), self.maybe(other), align))
                self.values[result] = copied
            case Store(buffer, offset, value, mask, align):
                k.append(Store(buffer, self.new(offset), self.new(value), self.maybe(mask), align))
            case Atomic(op, buffer, offset, value):
                k.append(Atomic(op, buffer, self.new(offset), self.new(value)))
            case Barrier():
                k.barrier()
            case For():
                self.loop(statement)
            case If(condition, then, otherwise, results):
                branch = If(self.new(condition), Block(), Block(), tuple(Value(k, r.type, r.name) for r in results))
                for old, new in ((then, branch.then), (otherwise, branch.otherwise)):
                    with k.inside(new):
                        new.yields = self.block(old)
                k.append(branch)
                self.values.update(zip(results, branch.results))

    def loop(self, loop: For) -> None:
        bounds = (self.new(loop.start), self.new(loop.stop), self.new(loop.step))
        with self.builder.loop_of(loop.kind, loop.index.name, *bounds, init=self.news(loop.inits)) as fold:
            self.values[loop.index] = fold.index
            self.values.update(zip(loop.carried, fold.values))
            fold.next(*self.block(loop.body))
        self.values.update(zip(loop.results, fold.results))
