// Runs kernels: the threads of a block are fibers that take turns at barriers. Every second round they go backwards, so
// that what is written on one side of a missing barrier and read on the other is seen too early or too late.
#include <ucontext.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace {
constexpr size_t STACK = 64 << 10, MOST_POINTERS = 31;

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

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[STACK]};
    Call call;
    bool is_done;
};

std::vector<std::unique_ptr<Fiber>> fibers;
ucontext_t scheduler;
Fiber *current;

void start() {
    call_by_count<0>(current->call);
    current->is_done = true;
    swapcontext(&current->context, &scheduler);
}
}  // namespace

extern "C" void shim_barrier(void) { swapcontext(&current->context, &scheduler); }

// 0, or 1 if some threads of a block reach a barrier that others do not.
extern "C" int shim_run(void (*function)(), void **pointers, int count, unsigned blocks, unsigned threads) {
    while (fibers.size() < threads) fibers.push_back(std::make_unique<Fiber>());
    for (unsigned block = 0; block < blocks; block++) {
        for (unsigned thread = 0; thread < threads; thread++) {
            Fiber &fiber = *fibers[thread];
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.get();
            fiber.context.uc_stack.ss_size = STACK;
            fiber.context.uc_link = nullptr;
            fiber.call = {function, pointers, count, block, thread};
            fiber.is_done = false;
            makecontext(&fiber.context, start, 0);
        }
        for (unsigned round = block, done = 0; !done; round++) {
            for (unsigned i = 0; i < threads; i++) {
                current = fibers[round % 2 ? threads - 1 - i : i].get();
                swapcontext(&scheduler, &current->context);
                done += current->is_done;
            }
            if (done && done != threads) return 1;
        }
    }
    return 0;
}
