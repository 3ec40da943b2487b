// Kernels and memory of WebAssembly. Addresses are those of its linear memory.
//
// What runs a program is a machine: `take` and `free` memory, `write`, `copy`, `clear`, `call` a kernel, `read` bytes.

import { Team, canShare } from "./threads.js";

const PAGE = 65536, LIMIT = 65536 * PAGE, ALIGN = 64;
const aligned = (size) => Math.ceil(size / ALIGN) * ALIGN;

export class WasmMachine {
  device = "wasm";
  isAsync = false;

  /** The module of a folder that fits this engine, and memory for the weights of its program. */
  static async open(document, read, threads) {
    const file = WebAssembly.validate(relaxedModule()) ? "relaxed.wasm" : "program.wasm";
    const code = Uint8Array.from(await read(file)), shared = threads > 1 && canShare();
    // The same code, for memory that is shared.
    if (shared) code[document.memoryFlags[file]] |= 2;
    const start = aligned(document.dataEnd), needed = start + document.weightBytes;
    if (needed > LIMIT) throw new Error(`the weights need ${needed} bytes, and WebAssembly has ${LIMIT}`);
    const memory = new WebAssembly.Memory({ initial: Math.ceil(needed / PAGE) + 1, maximum: LIMIT / PAGE, shared });
    const { module, instance } = await WebAssembly.instantiate(code, { env: { memory } }).catch((error) => {
      if (!(error instanceof WebAssembly.CompileError)) throw error;
      throw new Error(`${file} cannot be compiled: ${error.message}; copy the folder again, or export it again`);
    });
    const machine = new WasmMachine(document, instance.exports, memory, start);
    if (shared) {
      const takeStack = (size) => machine.take(size);
      machine.team = await Team.start(threads - 1, module, memory, machine.kernels, takeStack);
    }
    return machine;
  }

  constructor(document, kernels, memory, weights) {
    Object.assign(this, { memory, weights, team: null });
    this.heap = new Heap(memory, aligned(weights + document.weightBytes));
    this.kernels = document.grids.map((_, i) => kernels[`k${i}`]);
    const most = document.programs.flatMap((p) => p.steps).reduce((n, s) => Math.max(n, s.length ?? 0), 1);
    this.slots = this.take(8 * most);
  }

  /** How many threads take part in a run. */
  get threads() {
    return this.team?.threads ?? 1;
  }

  close() {
    this.team?.close();
    this.team = null;
  }

  weightAt(offset) {
    return this.weights + offset;
  }

  loadWeights(offset, bytes) {
    this.write(this.weights + offset, bytes);
  }

  take(size) {
    return this.heap.take(size);
  }

  free(address) {
    this.heap.free(address);
  }

  /** The bytes where they lie; the view is lost when memory grows. */
  view(address, size) {
    return new Uint8Array(this.memory.buffer, address, size);
  }

  write(address, bytes) {
    this.view(address, bytes.length).set(bytes);
  }

  clear(address, size) {
    this.view(address, size).fill(0);
  }

  copy(from, to, size) {
    if (size && from !== to) new Uint8Array(this.memory.buffer).copyWithin(to, from, from + size);
  }

  /** Copies of bytes, for pairs of an address and a size. */
  read(places) {
    return places.map(([address, size]) => Uint8Array.from(this.view(address, size)));
  }

  /** Arguments are words of 64 bits; addresses are below 2^32, sizes are exact in a float. */
  call(kernel, rounds, words, count) {
    const slots = new Int32Array(this.memory.buffer, this.slots, 2 * count);
    for (let i = 0; i < count; i++) {
      slots[2 * i] = words[i] % 4294967296;
      slots[2 * i + 1] = Math.floor(words[i] / 4294967296);
    }
    if (this.team) this.team.run(kernel, this.slots, BigInt(rounds));
    else this.kernels[kernel](this.slots, 0n, BigInt(rounds));
  }
}

/** The smallest module with the instruction that multiplies and adds, which not all engines have. */
function relaxedModule() {
  const constant = [0xfd, 0x0c, ...new Array(16).fill(0)];
  const body = [0, ...constant, ...constant, ...constant, 0xfd, 0x85, 0x02, 0x1a, 0x0b];
  return Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0, 1, 4, 1, 0x60, 0, 0, 3, 2, 1, 0, 10, body.length + 2, 1, body.length, ...body);
}

/** Memory handed out and taken back, first fit. */
class Heap {
  constructor(memory, start) {
    this.memory = memory;
    this.holes = [[start, LIMIT]];
    this.sizes = new Map();
  }

  take(size) {
    const wanted = Math.max(ALIGN, aligned(size));
    const hole = this.holes.findIndex(([from, to]) => to - from >= wanted);
    if (hole < 0) throw new Error(`${wanted} bytes more do not fit into the ${LIMIT} that WebAssembly has`);
    const [from, to] = this.holes[hole], missing = from + wanted - this.memory.buffer.byteLength;
    if (missing > 0) this.#grow(Math.ceil(missing / PAGE));
    if (to - from === wanted) this.holes.splice(hole, 1);
    else this.holes[hole] = [from + wanted, to];
    this.sizes.set(from, wanted);
    return from;
  }

  #grow(pages) {
    try {
      this.memory.grow(pages);
    } catch {
      throw new Error(`the browser has no memory for ${pages * PAGE} bytes more; use a smaller model or shorter texts`);
    }
  }

  free(address) {
    const size = this.sizes.get(address);
    if (size === undefined) return;
    this.sizes.delete(address);
    const after = this.holes.findIndex(([from]) => from > address);
    const at = after < 0 ? this.holes.length : after;
    this.holes.splice(at, 0, [address, address + size]);
    // Neighbours become one.
    for (const i of [at, at - 1]) {
      if (i >= 0 && i + 1 < this.holes.length && this.holes[i][1] === this.holes[i + 1][0])
        this.holes.splice(i, 2, [this.holes[i][0], this.holes[i + 1][1]]);
    }
  }
}
