"""`copy_into(kernel, builder)`: every statement of a kernel appended to another builder.

A pass is a builder that appends something else for some operations; see `legalize`.
"""

from __future__ import annotations

from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.groups import Role, Roles
from rlx.kernels.ir.loop_ir import (
    Atomic,
    Barrier,
    Block,
    Const,
    For,
    GroupStatement,
    If,
    Kernel,
    Let,
    Load,
    Prefetch,
    Statement,
    Store,
    Value,
)


def copy_into(kernel: Kernel, builder: KernelBuilder, copier: type[Copier] | None = None) -> Kernel:
    """Copy parameters and body into a fresh builder and build it."""
    (copier or Copier)(builder, builder.adopt(kernel)).block(kernel.body)
    return builder.build()


class Copier:
    """Appends statements to a builder; `values` has what each value of the old kernel is in the new one."""

    def __init__(self, builder: KernelBuilder, values: dict[Value, Value]) -> None:
        self.builder = builder
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
                self.values[result] = k.pure(op, self.news(args), attr)
            case Load(result, buffer, offset, mask, other, align):
                copied = Value(k, result.type, result.name)
                k.append(Load(copied, buffer, self.new(offset), self.maybe(mask), self.maybe(other), align))
                self.values[result] = copied
            case Store(buffer, offset, value, mask, align):
                k.append(Store(buffer, self.new(offset), self.new(value), self.maybe(mask), align))
            case Prefetch(buffer, offset):
                k.append(Prefetch(buffer, self.new(offset)))
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
            case Roles(roles):
                k.append(Roles(tuple(map(self.role, roles))))
            case GroupStatement():
                renewed = statement.renewed(self.new)
                # What is computed from them goes where this statement went.
                for result in renewed.results():
                    result.builder = k
                k.append(renewed)
                self.values.update(zip(statement.results(), renewed.results()))

    def role(self, role: Role) -> Role:
        index = self.values[role.index] = Value(self.builder, role.index.type, role.index.name)
        new = Role(role.name, role.copies, role.threads, role.registers, index, Block())
        with self.builder.inside(new.body):
            self.block(role.body)
        return new

    def loop(self, loop: For) -> None:
        bounds = (self.new(loop.start), self.new(loop.stop), self.new(loop.step))
        with self.builder.loop_of(loop.kind, loop.index.name, *bounds, init=self.news(loop.inits)) as fold:
            self.values[loop.index] = fold.index
            self.values.update(zip(loop.carried, fold.values))
            fold.next(*self.block(loop.body), again=self.maybe(loop.body.again))
        self.values.update(zip(loop.results, fold.results))
