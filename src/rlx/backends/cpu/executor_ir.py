"""The native executor as LLVM IR: what `spmd` compiles and explains.

Written here because kernels have no atomics of this kind and no user has a C compiler. `executor_words` has the few
words that it is written in, `executor_sleep` what differs from system to system; each `build_` method of `_Module` is
one function, with its contract.
"""

from __future__ import annotations

from typing import Any

from rlx.backends.cpu.executor_call import build_call
from rlx.backends.cpu.executor_layout import Job, Mailbox, PoolState, Spot
from rlx.backends.cpu.executor_sleep import PosixSleep, WindowsSleep, build_keep_apart, is_linux, is_windows
from rlx.backends.cpu.executor_words import Function
from rlx.backends.program.table_layout import ENDLESS, WORD, Command, Control, Move, Patch, Segment
from rlx.kernels.machines import Machine

SPIN_NS = 50_000
# From the start of the wait: inside of a run, where what is waited for is soon there, and between runs, where the CPUs
# may be somebody else's meanwhile. A decoder takes less than that from step to step.
PARK_NS = 1_000_000
IDLE_NS = 200_000
PAUSE_NS = 100_000_000
LEAVE = (1 << 63) - 1  # the mail that ends a worker

_LOOKS_PER_TIME = 32  # looks at a word between two looks at the clock
_SEGMENTS_PER_TIME = 16  # narrow segments between two of them
_PAUSES = {"x86_64": "llvm.x86.sse2.pause"}


def executor_text(machine: Machine, pause_ns: int = PAUSE_NS) -> str:
    """The LLVM module of the executor; `run` comes back to its caller after `pause_ns`."""
    return str(_Module(machine, pause_ns).module)


class _Module:
    def __init__(self, machine: Machine, pause_ns: int) -> None:
        from llvmlite import ir

        self.ir, self.machine, self.pause_ns = ir, machine, pause_ns
        self.module = ir.Module("rlx.executor")
        self.module.triple = machine.triple
        self.i64, self.i32, self.void, self.address = ir.IntType(64), ir.IntType(32), ir.VoidType(), ir.PointerType()
        self.sleeping = (WindowsSleep if is_windows(machine) else PosixSleep)(self)
        self.now = self.build_now()
        self.wake = self.build_wake()
        self.keep_apart = build_keep_apart(self) if is_linux(machine) else None
        self.wait_until = self.build_wait_until()
        self.packed = ir.FunctionType(self.void, [self.address, self.i64, self.i64])
        self.relocate = self.build_relocate()
        self.move = self.build_move()
        self.decide = self.build_decide()
        self.perform = self.build_perform()
        self.enter = self.build_enter()
        self.walk = self.build_walk()
        self.run = self.build_run()
        self.build_serve()
        self.build_dismiss()
        build_call(self)

    def declare(self, name: str, result: Any, *parameters: Any) -> Any:
        return self.ir.Function(self.module, self.ir.FunctionType(result, parameters), name)

    def pause(self, f: Function) -> None:
        """Tell the processor that this thread only waits."""
        architecture = self.machine.triple.split("-")[0]
        if architecture == "aarch64":
            f.b.call(self.intrinsic("llvm.aarch64.hint", self.i32), [self.i32(1)])
        elif architecture in _PAUSES:
            f.b.call(self.intrinsic(_PAUSES[architecture]), [])

    def intrinsic(self, name: str, *parameters: Any) -> Any:
        return self.module.globals.get(name) or self.declare(name, self.void, *parameters)

    def build_now(self) -> Any:
        """Nanoseconds of a clock that never goes back."""
        f = Function(self, "now", self.i64)
        f.b.ret(self.sleeping.now(f))
        return f.function

    def build_wake(self) -> Any:
        """wake(spot): called after a word has changed. Those who sleep counted themselves before they looked at the
        word for the last time: nobody is missed."""
        f = Function(self, "wake", self.void, self.address)
        (spot,) = f.function.args
        sleepers = f.atomic_load(f.word(spot, Spot.SLEEPERS), "seq_cst")
        f.returns_if(f.b.icmp_signed("==", sleepers, self.i64(0)))
        self.sleeping.wake(f, spot)
        f.b.ret_void()
        return f.function

    def build_wait_until(self) -> Any:
        """wait_until(word, least, spot, patience): until `*word >= least`, where who changes the word calls wake(spot).
        Sleeps after `patience` ns."""
        f = Function(self, "wait_until", self.void, self.address, self.i64, self.address, self.i64)
        word, least, spot, patience = f.function.args

        def reached(ordering: str) -> Any:
            return f.b.icmp_signed(">=", f.atomic_load(word, ordering), least)

        f.returns_if(reached("acquire"))
        start = f.b.call(self.now, [])
        looks = f.variable(self.i64(0))
        with f.forever() as waiting:
            self.pause(f)
            f.returns_if(reached("acquire"))
            count = f.b.add(f.load(looks), self.i64(1))
            f.b.store(count, looks)
            waiting.next_if(f.b.icmp_signed("!=", f.b.urem(count, self.i64(_LOOKS_PER_TIME)), self.i64(0)))
            waited = f.b.sub(f.b.call(self.now, []), start)
            waiting.leave_if(f.b.icmp_signed(">=", waited, patience))
            with f.when(f.b.icmp_signed(">=", waited, self.i64(SPIN_NS))):
                self.sleeping.yield_cpu(f)
        self.sleeping.sleep_until(f, lambda: reached("seq_cst"), spot)
        f.b.ret_void()
        return f.function

    def build_relocate(self) -> Any:
        """relocate(job, segment): write every address into the slots where the kernels of a segment read it."""
        f = Function(self, "relocate", self.void, self.address, self.address)
        job, segment = f.function.args
        slots, values = f.pointer(job, Job.SLOTS), f.pointer(job, Job.VALUES)
        patches, count = f.pointer(segment, Segment.PATCHES), f.field(segment, Segment.PATCH_COUNT)
        with f.each(count) as i:
            patch = f.word(patches, f.b.mul(i, self.i64(Patch.WORDS)))
            base = f.load(f.word(values, f.field(patch, Patch.VALUE)))
            f.b.store(f.b.add(base, f.field(patch, Patch.OFFSET)), f.word(slots, f.field(patch, Patch.SLOT)))
        f.b.ret_void()
        return f.function

    def build_move(self) -> Any:
        """move(job, control, counter): set the addresses that change with the counter."""
        f = Function(self, "move", self.void, self.address, self.address, self.i64)
        job, control, counter = f.function.args
        values, moves = f.pointer(job, Job.VALUES), f.pointer(control, Control.MOVES)
        is_first = f.b.icmp_signed("==", counter, self.i64(0))
        is_odd = f.b.trunc(counter, self.ir.IntType(1))
        with f.each(f.field(control, Control.MOVE_COUNT)) as i:
            move = f.word(moves, f.b.mul(i, self.i64(Move.WORDS)))

            def chosen(offset: int, move: Any = move) -> Any:
                later = f.b.select(is_odd, f.field(move, Move.ODD + offset), f.field(move, Move.EVEN + offset))
                return f.b.select(is_first, f.field(move, Move.FIRST + offset), later)

            start = f.b.add(f.load(f.word(values, chosen(0))), chosen(1))
            row = f.b.sdiv(f.b.mul(counter, f.field(move, Move.NUMERATOR)), f.field(move, Move.DENOMINATOR))
            place = f.b.add(start, f.b.mul(row, f.field(move, Move.STRIDE)))
            f.b.store(place, f.word(values, f.field(move, Move.TO)))
        f.b.ret_void()
        return f.function

    def build_decide(self) -> Any:
        """decide(job, control) -> the segment that follows; its addresses are in their places."""
        f = Function(self, "decide", self.address, self.address, self.address)
        job, control = f.function.args
        counter = f.pointer(control, Control.COUNTER)
        stepped = f.b.add(f.load(counter), self.i64(1))
        steps = f.b.icmp_signed("!=", f.field(control, Control.STEP), self.i64(0))
        count = f.b.select(steps, stepped, self.i64(0))
        f.b.store(count, counter)
        predicate = f.field(control, Control.PREDICATE)
        is_true = f.variable(self.i64(1))
        with f.when(f.b.icmp_signed(">=", predicate, self.i64(0))):
            base = f.load(f.word(f.pointer(job, Job.VALUES), predicate))
            place = f.b.add(base, f.field(control, Control.PREDICATE_OFFSET))
            byte = f.b.load(f.b.inttoptr(place, self.address), typ=self.ir.IntType(8))
            f.b.store(f.b.zext(byte, self.i64), is_true)
        goes_on = f.b.icmp_signed("<", count, f.field(control, Control.LIMIT))
        holds = f.b.and_(goes_on, f.b.icmp_signed("!=", f.load(is_true), self.i64(0)))
        f.b.call(self.move, [job, control, count])
        following = f.b.select(holds, f.field(control, Control.THEN), f.field(control, Control.ELSE))
        segment = f.b.inttoptr(following, self.address)
        f.b.call(self.relocate, [job, segment])
        f.b.ret(segment)
        return f.function

    def build_perform(self) -> Any:
        """perform(segment) -> its control, or null: run all of a segment in this thread."""
        f = Function(self, "perform", self.address, self.address)
        (segment,) = f.function.args
        command = f.variable(f.field(segment, Segment.COMMANDS))
        left = f.variable(f.field(segment, Segment.TICKETS))
        is_last = f.b.icmp_signed("!=", f.field(segment, Segment.IS_LAST), self.i64(0))
        with f.forever() as loop:
            loop.leave_if(f.b.icmp_signed("==", f.load(left), self.i64(0)))
            here = f.b.inttoptr(f.load(command), self.address)
            entry = f.field(here, Command.ENTRY)
            loop.leave_if(f.b.icmp_signed("==", entry, self.i64(0)))
            run = f.b.inttoptr(entry, self.packed.as_pointer())
            f.b.call(run, [f.pointer(here, Command.ARGS), self.i64(0), f.field(here, Command.ITERATIONS)])
            done = f.b.sub(f.field(here, Command.END), f.field(here, Command.FIRST))
            f.b.store(f.b.sub(f.load(left), done), left)
            f.b.store(f.b.add(f.load(command), self.i64(Command.WORDS * WORD)), command)
        here = f.b.inttoptr(f.load(command), self.address)
        with f.when(is_last):
            f.b.ret(self.ir.Constant(self.address, None))
        f.b.ret(f.pointer(here, Command.ARGS))
        return f.function

    def build_enter(self) -> Any:
        """enter(job, segment, base): let a segment be at work, its tickets beginning at `base`, all below being
        completed. Narrow segments are run at once, until the time for a look at the outside has come."""
        f = Function(self, "enter", self.void, self.address, self.address, self.i64)
        job, start, base = f.function.args
        current = f.variable(f.b.ptrtoint(start, self.i64))
        segments = f.variable(self.i64(0))  # how many were run
        seen = f.variable(self.i64(0))  # the time at the last look
        tickets, limit = f.word(job, Job.TICKETS), f.word(job, Job.LIMIT)
        with f.forever() as loop:
            segment = f.b.inttoptr(f.load(current), self.address)
            loop.leave_if(f.b.icmp_signed("==", f.field(segment, Segment.IS_NARROW), self.i64(0)))
            count = f.b.add(f.load(segments), self.i64(1))
            f.b.store(count, segments)
            with f.when(f.b.icmp_signed("==", f.b.urem(count, self.i64(_SEGMENTS_PER_TIME)), self.i64(0))):
                f.b.store(f.b.call(self.now, []), seen)
            loop.leave_if(f.b.icmp_signed(">=", f.load(seen), f.field(job, Job.DEADLINE)))
            control = f.b.call(self.perform, [segment])
            with f.when(f.b.icmp_unsigned("==", f.b.ptrtoint(control, self.i64), self.i64(0))):
                f.b.store(base, tickets)
                f.atomic_store(self.i64(ENDLESS), limit, "seq_cst")
                f.b.ret_void()
            f.b.store(f.b.ptrtoint(f.b.call(self.decide, [job, control]), self.i64), current)
        segment = f.b.inttoptr(f.load(current), self.address)
        end = f.b.add(base, f.field(segment, Segment.TICKETS))
        is_last = f.b.icmp_signed("!=", f.field(segment, Segment.IS_LAST), self.i64(0))
        endless = self.i64(ENDLESS)
        f.b.store(f.field(segment, Segment.COMMANDS), f.word(job, Job.COMMANDS))
        f.b.store(base, f.word(job, Job.BASE))
        f.b.store(f.b.select(is_last, end, endless), tickets)
        # Last: who sees it sees the rest.
        f.atomic_store(f.b.select(is_last, endless, end), limit, "seq_cst")
        f.b.ret_void()
        return f.function

    def build_walk(self) -> Any:
        """walk(pool, job, deadline): take tickets and run them until none is left or no more are to be taken. Who
        has a deadline (0: none) tells all others to stop when it has passed. A ticket that was taken is always run:
        everything below it was taken before, by threads that are at it, so nobody waits in vain. A segment stays at
        work until its last ticket has been run, so whoever holds one of its tickets sees it unchanged."""
        f = Function(self, "walk", self.void, self.address, self.address, self.i64)
        pool, job, deadline = f.function.args
        progress = f.word(pool, PoolState.PROGRESS)
        limit = f.variable(self.i64(0))  # of the segment that this thread knows
        base = f.variable(self.i64(0))
        command = f.variable(self.i64(0))  # its address
        unsaid = f.variable(self.i64(0))  # tickets run by this thread that the others do not know of
        settled = f.variable(self.i64(0))  # all tickets below are known to be completed

        def say() -> None:
            with f.when(f.b.icmp_signed("!=", f.load(unsaid), self.i64(0))):
                f.atomic_add(f.word(job, Job.COMPLETED), f.load(unsaid), "seq_cst")
                f.b.call(self.wake, [progress])
                f.b.store(self.i64(0), unsaid)

        stop = f.word(job, Job.STOP)
        with f.forever() as dealing:
            dealing.leave_if(f.b.icmp_signed("!=", f.atomic_load(stop, "monotonic"), self.i64(0)))
            ticket = f.atomic_add(f.word(job, Job.NEXT), self.i64(1), "monotonic")
            with f.when(f.b.icmp_signed(">=", ticket, f.load(limit))):
                say()
                following = f.b.add(ticket, self.i64(1))
                f.b.call(self.wait_until, [f.word(job, Job.LIMIT), following, progress, self.i64(PARK_NS)])
                f.b.store(f.atomic_load(f.word(job, Job.LIMIT), "acquire"), limit)
                f.b.store(f.field(job, Job.BASE), base)
                f.b.store(f.field(job, Job.COMMANDS), command)
                f.b.store(f.load(base), settled)
            dealing.leave_if(f.b.icmp_signed(">=", ticket, f.atomic_load(f.word(job, Job.TICKETS), "monotonic")))
            position = f.b.sub(ticket, f.load(base))
            with f.forever() as searching:
                here = f.b.inttoptr(f.load(command), self.address)
                searching.leave_if(f.b.icmp_signed("<", position, f.field(here, Command.END)))
                f.b.store(f.b.add(f.load(command), self.i64(Command.WORDS * WORD)), command)
            here = f.b.inttoptr(f.load(command), self.address)
            after = f.b.add(f.load(base), f.field(here, Command.AFTER))
            with f.when(f.b.icmp_signed(">", after, f.load(settled))):
                say()
                f.b.call(self.wait_until, [f.word(job, Job.COMPLETED), after, progress, self.i64(PARK_NS)])
                f.b.store(after, settled)
            entry = f.field(here, Command.ENTRY)
            with f.b.if_else(f.b.icmp_signed("!=", entry, self.i64(0))) as (is_kernel, is_control):
                with is_kernel:
                    grain = f.field(here, Command.GRAIN)
                    first = f.b.mul(f.b.sub(position, f.field(here, Command.FIRST)), grain)
                    end, iterations = f.b.add(first, grain), f.field(here, Command.ITERATIONS)
                    last = f.b.select(f.b.icmp_signed("<", end, iterations), end, iterations)
                    run = f.b.inttoptr(entry, self.packed.as_pointer())
                    f.b.call(run, [f.pointer(here, Command.ARGS), first, last])
                    f.b.store(f.b.add(f.load(unsaid), self.i64(1)), unsaid)
                with is_control:
                    f.b.store(f.b.add(f.load(unsaid), self.i64(1)), unsaid)
                    # Everything that was taken has been run: what follows begins with a clean count.
                    say()
                    segment = f.b.call(self.decide, [job, f.pointer(here, Command.ARGS)])
                    f.b.call(self.enter, [job, segment, f.b.add(ticket, self.i64(1))])
                    f.b.call(self.wake, [progress])
            # After a ticket, not before: every call gets something done.
            dealing.next_if(f.b.icmp_signed("==", deadline, self.i64(0)))
            dealing.next_if(f.b.icmp_signed("<", f.b.call(self.now, []), deadline))
            f.atomic_store(self.i64(1), stop, "monotonic")
        say()
        f.b.ret_void()
        return f.function

    def build_run(self) -> Any:
        """run(pool, job, threads): goes on from the ticket where the job stands."""
        f = Function(self, "rlx.run", self.i64, self.address, self.address, self.i64)
        pool, job, threads = f.function.args
        f.atomic_store(self.i64(0), f.word(job, Job.STOP), "monotonic")
        deadline = f.b.add(f.b.call(self.now, []), self.i64(self.pause_ns))
        f.b.store(deadline, f.word(job, Job.DEADLINE))
        with f.when(f.b.icmp_signed("==", f.field(job, Job.NEXT), self.i64(0))):
            start = f.pointer(job, Job.START)
            f.b.call(self.relocate, [job, start])
            f.b.call(self.enter, [job, start, self.i64(0)])
        is_owner = f.variable(self.i64(0))
        with f.when(f.b.icmp_signed(">", threads, self.i64(1))):
            swapped = f.b.cmpxchg(f.word(pool, PoolState.OWNER), self.i64(0), self.i64(1), "acquire", "monotonic")
            f.b.store(f.b.zext(f.b.extract_value(swapped, 1), self.i64), is_owner)
        owns = f.b.icmp_signed("!=", f.load(is_owner), self.i64(0))
        with f.when(owns):
            self.invite(f, pool, job, threads)
        f.b.call(self.walk, [pool, job, deadline])
        with f.when(owns):
            # A worker counts itself in before it looks whether the job is open: it sees that it is not, or is seen.
            f.atomic_store(self.i64(0), f.word(pool, PoolState.OPEN), "seq_cst")
            absent, progress = f.word(pool, PoolState.ABSENT), f.word(pool, PoolState.PROGRESS)
            f.b.call(self.wait_until, [absent, self.i64(0), progress, self.i64(PARK_NS)])
            f.atomic_store(self.i64(0), f.word(pool, PoolState.OWNER), "release")
        completed = f.atomic_load(f.word(job, Job.COMPLETED), "acquire")
        f.b.ret(f.b.zext(f.b.icmp_signed("<", completed, f.field(job, Job.TICKETS)), self.i64))
        return f.function

    def invite(self, f: Function, pool: Any, job: Any, threads: Any) -> None:
        """Open the job and write to the mailboxes of as many workers as are wanted beside the caller."""
        number = f.b.add(f.field(pool, PoolState.GENERATION), self.i64(1))
        f.b.store(number, f.word(pool, PoolState.GENERATION))
        f.b.store(f.b.ptrtoint(job, self.i64), f.word(pool, PoolState.JOB))
        f.atomic_store(number, f.word(pool, PoolState.OPEN), "seq_cst")
        self.write_to_workers(f, pool, f.b.sub(threads, self.i64(1)), number)

    def write_to_workers(self, f: Function, pool: Any, count: Any, mail: Any) -> None:
        with f.each(count) as i:
            boxes = f.word(pool, PoolState.MAILBOXES)
            box = f.word(boxes, f.b.mul(i, self.i64(Mailbox.WORDS)))
            # Never back to a smaller number: who was told to leave stays told.
            f.b.atomic_rmw("max", f.word(box, Mailbox.MAIL), mail, "seq_cst")
            if self.keep_apart is not None:
                f.b.call(self.keep_apart, [pool, box])
            f.b.call(self.wake, [f.word(box, Mailbox.SPOT)])

    def build_serve(self) -> None:
        """serve(pool, mailbox): the life of a worker."""
        f = Function(self, "rlx.serve", self.void, self.address, self.address)
        pool, box = f.function.args
        mail = f.variable(self.i64(0))
        absent, progress = f.word(pool, PoolState.ABSENT), f.word(pool, PoolState.PROGRESS)
        with f.forever():
            following = f.b.add(f.load(mail), self.i64(1))
            slot, spot = f.word(box, Mailbox.MAIL), f.word(box, Mailbox.SPOT)
            f.b.call(self.wait_until, [slot, following, spot, self.i64(IDLE_NS)])
            f.b.store(f.atomic_load(f.word(box, Mailbox.MAIL), "acquire"), mail)
            f.returns_if(f.b.icmp_signed("==", f.load(mail), self.i64(LEAVE)))
            f.atomic_add(absent, self.i64(-1), "seq_cst")
            is_open = f.atomic_load(f.word(pool, PoolState.OPEN), "seq_cst")
            with f.when(f.b.icmp_signed("==", is_open, f.load(mail))):
                f.b.call(self.walk, [pool, f.pointer(pool, PoolState.JOB), self.i64(0)])
            f.atomic_add(absent, self.i64(1), "seq_cst")
            f.b.call(self.wake, [progress])
        f.b.unreachable()

    def build_dismiss(self) -> None:
        """dismiss(pool, workers): end the workers; one that is inside a job ends after it."""
        f = Function(self, "rlx.dismiss", self.void, self.address, self.i64)
        pool, workers = f.function.args
        self.write_to_workers(f, pool, workers, self.i64(LEAVE))
        f.b.ret_void()
