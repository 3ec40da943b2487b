// Runs kernels: the threads of a block are fibers that take turns at barriers, those of a block or of its simdgroups. Every second round they go backwards, so
// that what is written on one side of a missing barrier and read on the other is seen too early or too late.
#include <sys/mman.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

namespace {
constexpr size_t STACK = 64 << 10, GUARD = 64 << 10, MOST_POINTERS = 31;
constexpr unsigned SIMDGROUP = 32;
enum class State { RUNS, AT_BARRIER, AT_SIMDGROUP_BARRIER, DONE };

struct Call {
    void (*function)();
    void **pointers;
    int count;
    unsigned block, thread;
};

template <size_t... I> void call_with(const Call &c, std::index_sequence<I...>) {
    auto f = reinterpret_cast<void (*)(decltype((void)I, (void *)nullptr)..., unsigned, unsigned)>(c.function);
    f(c.pointers[I]..., c.block, c.thread);
}

template <size_t N> void call_by_count(const Call &c) {
    if (c.count == int(N)) {
        call_with(c, std::make_index_sequence<N>());
    } else if constexpr (N < MOST_POINTERS) {
        call_by_count<N + 1>(c);
    }
}

// A stack below which nothing may be touched: a kernel that needs more of it stops there and harms no other memory.
struct Stack {
    char *guard = static_cast<char *>(
        mmap(nullptr, GUARD + STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    Stack() {
        if (guard == MAP_FAILED || mprotect(guard, GUARD, PROT_NONE)) abort();
    }
    char *bottom() const { return guard + GUARD; }
};

struct Fiber {
    ucontext_t context;
    Stack stack;
    Call call;
    State state;
};

std::vector<std::unique_ptr<Fiber>> fibers;
ucontext_t scheduler;
Fiber *current;

void start() {
    call_by_count<0>(current->call);
    current->state = State::DONE;
    swapcontext(&current->context, &scheduler);
}

void wait_at(State state) {
    current->state = state;
    swapcontext(&current->context, &scheduler);
}

// Let threads from `first` on go if all of them wait at the same kind of barrier.
bool released(unsigned first, unsigned count, State state) {
    for (unsigned i = first; i < first + count; i++)
        if (fibers[i]->state != state) return false;
    for (unsigned i = first; i < first + count; i++) fibers[i]->state = State::RUNS;
    return true;
}
}  // namespace

extern "C" void shim_barrier(void) { wait_at(State::AT_BARRIER); }
extern "C" void shim_simdgroup_barrier(void) { wait_at(State::AT_SIMDGROUP_BARRIER); }
extern "C" unsigned shim_thread(void) { return current->call.thread; }

// 0, or 1 if some threads of a block reach a barrier that others do not.
extern "C" int shim_run(void (*function)(), void **pointers, int count, unsigned blocks, unsigned threads) {
    while (fibers.size() < threads) fibers.push_back(std::make_unique<Fiber>());
    for (unsigned block = 0; block < blocks; block++) {
        for (unsigned thread = 0; thread < threads; thread++) {
            Fiber &fiber = *fibers[thread];
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.bottom();
            fiber.context.uc_stack.ss_size = STACK;
            fiber.context.uc_link = nullptr;
            fiber.call = {function, pointers, count, block, thread};
            fiber.state = State::RUNS;
            makecontext(&fiber.context, start, 0);
        }
        for (unsigned round = block, done = 0; !done; round++) {
            for (unsigned i = 0; i < threads; i++) {
                current = fibers[round % 2 ? threads - 1 - i : i].get();
                if (current->state == State::RUNS) swapcontext(&scheduler, &current->context);
                done += current->state == State::DONE;
            }
            if (done == threads) break;
            bool goes_on = released(0, threads, State::AT_BARRIER);
            for (unsigned first = 0; first < threads; first += SIMDGROUP) {
                unsigned count = threads - first < SIMDGROUP ? threads - first : SIMDGROUP;
                goes_on |= released(first, count, State::AT_SIMDGROUP_BARRIER);
            }
            if (!goes_on) return 1;
            done = 0;
        }
    }
    return 0;
}
