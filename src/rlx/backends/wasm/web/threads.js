// Several threads for one program: helpers that share its memory and take a part of the iterations of a kernel.
//
// A kernel's iterations are independent, so results do not depend on how many threads there are. Who runs a program
// opens a job; helpers that are awake come in, take iterations as long as there are some, and leave. The caller takes
// part itself, so a helper that comes late, or never, delays nobody. Needs a page that is cross-origin isolated.

// Words of the control block.
const ROUND = 0, IS_OPEN = 1, INSIDE = 2, NEXT = 3, KERNEL = 4, ARGUMENTS = 5, TOTAL = 6, GRAIN = 7;
// How many pieces helpers have taken, and whether one of them failed.
const HELPED = 8, HAS_FAILED = 9;
const WORDS = 10, STACK = 1 << 18;
// Iterations below which inviting others costs more than they save.
const WORTH_SHARING = 4;

/** Whether memory can be shared here. */
export const canShare = () =>
  typeof SharedArrayBuffer !== "undefined" && (globalThis.crossOriginIsolated ?? true);

export class Team {
  /** `count` helpers for the kernels of a module; `takeStack(size)` gives memory for each. */
  static async start(count, module, memory, kernels, takeStack) {
    const isWeb = typeof globalThis.Worker !== "undefined";
    const { Worker: Helper } = isWeb ? globalThis : await import("node:worker_threads");
    const control = new Int32Array(new SharedArrayBuffer(4 * WORDS)), helpers = [];
    for (let i = 0; i < count; i++) {
      const helper = new Helper(new URL("./helper.js", import.meta.url), { type: "module" });
      helper.unref?.();
      helper.postMessage({ module, memory, control, stack: takeStack(STACK) + STACK });
      helpers.push(helper);
    }
    return new Team(control, kernels, helpers);
  }

  constructor(control, kernels, helpers) {
    Object.assign(this, { control, kernels, helpers, threads: helpers.length + 1 });
  }

  /** How many pieces of kernels helpers have done so far. */
  get helped() {
    return Atomics.load(this.control, HELPED);
  }

  /** All iterations of a kernel; comes back when all are done. */
  run(kernel, address, rounds) {
    const { control } = this, total = Number(rounds);
    if (total < WORTH_SHARING) return this.kernels[kernel](address, 0n, rounds);
    control[NEXT] = 0;
    control[KERNEL] = kernel;
    control[ARGUMENTS] = address;
    control[TOTAL] = total;
    control[GRAIN] = Math.max(1, Math.ceil(total / (4 * this.threads)));
    // What stands above is seen by whoever sees this.
    Atomics.store(control, IS_OPEN, 1);
    Atomics.add(control, ROUND, 1);
    Atomics.notify(control, ROUND);
    try {
      takePart(control, this.kernels);
    } finally {
      Atomics.store(control, IS_OPEN, 0);
      while (Atomics.load(control, INSIDE) !== 0);
    }
    if (Atomics.load(control, HAS_FAILED)) throw new Error("a thread of the program has failed; load it again");
  }

  close() {
    this.helpers.forEach((helper) => helper.terminate());
  }
}

/** Take iterations of the job that is open until there are none. */
function takePart(control, kernels) {
  const kernel = kernels[control[KERNEL]], address = control[ARGUMENTS], total = control[TOTAL], grain = control[GRAIN];
  let pieces = 0;
  for (let first = Atomics.add(control, NEXT, grain); first < total; first = Atomics.add(control, NEXT, grain)) {
    kernel(address, BigInt(first), BigInt(Math.min(first + grain, total)));
    pieces++;
  }
  return pieces;
}

/** What a helper does until it is ended. */
export function help(control, kernels) {
  for (let seen = Atomics.load(control, ROUND); ; seen = Atomics.load(control, ROUND)) {
    Atomics.add(control, INSIDE, 1);
    try {
      if (Atomics.load(control, IS_OPEN)) Atomics.add(control, HELPED, takePart(control, kernels));
    } catch {
      Atomics.store(control, HAS_FAILED, 1);
    }
    Atomics.sub(control, INSIDE, 1);
    Atomics.wait(control, ROUND, seen);
  }
}
