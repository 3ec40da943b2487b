// Kernels and memory of a GPU, through WebGPU. Does what `wasm_machine.js` does, but reading is a promise.
//
// An address is the number of a buffer times 2^32, plus an offset in bytes. What is asked for is collected in order, and
// goes to the GPU when somebody reads: all kernels of a run in one command encoder.

import { Form, Pipelines } from "./gpu_kernels.js";

const SPAN = 4294967296, MEBIBYTE = 1 << 20;
// Positions are counted in 32 bits.
const MOST_BYTES = 2 ** 31 - 256;
// Of buffers that are free, as many bytes are kept for later.
const KEPT_BYTES = 256 * MEBIBYTE, KEPT_GROUPS = 4096;
// The buffer of arguments, and where those of a kernel may begin.
const ARGUMENT_BYTES = MEBIBYTE, ARGUMENT_ALIGN = 256;
// Workgroups side by side, as kernels number them.
const GRID_ROW = 32768;
const RAISED = ["maxStorageBufferBindingSize", "maxBufferSize", "maxStorageBuffersPerShaderStage"];

/** Why there is no GPU for a program; another machine may run it. */
export class NoGpu extends Error {}

export class GpuMachine {
  device = "webgpu";
  isAsync = true;
  threads = 1;

  /** The GPU that the browser offers, with memory for the weights of a program. */
  static async open(document) {
    const { gpu } = globalThis.navigator ?? {};
    if (!gpu) throw new NoGpu("this browser does not have it");
    const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
    if (!adapter) throw new NoGpu("this browser finds no adapter");
    const limits = Object.fromEntries(RAISED.map((name) => [name, adapter.limits[name]]));
    const needed = mostBindings(document);
    if (needed > limits.maxStorageBuffersPerShaderStage)
      throw new NoGpu(`a kernel reads ${needed} arrays, and this GPU ${limits.maxStorageBuffersPerShaderStage} at a time`);
    const handle = await adapter.requestDevice({ requiredLimits: limits }).catch((error) => {
      throw new NoGpu(error.message);
    });
    handle.pushErrorScope("out-of-memory");
    try {
      return new GpuMachine(document, handle, limits, adapter.info);
    } catch (error) {
      throw new NoGpu(error.message);
    }
  }

  constructor(document, handle, limits, info) {
    Object.assign(this, { document, handle, limits, about: [info?.vendor, info?.architecture].filter(Boolean).join(" ") });
    // All but the last binding of a buffer end where the next may begin.
    this.window = Math.floor(limits.maxStorageBufferBindingSize / 256) * 256;
    this.largest = Math.min(limits.maxBufferSize, MOST_BYTES);
    this.buffers = new Map();
    this.holes = new Map();
    this.keptBytes = 0;
    this.next = 1;
    this.gone = [];
    this.commands = [];
    this.pipelines = new Pipelines(handle, document.prelude);
    this.forms = new Map();
    this.groups = new Map();
    this.tables = new Map();
    this.scratch = 0;
    this.staging = null;
    this.words = new Int32Array(ARGUMENT_BYTES / 4);
    const { UNIFORM, COPY_DST } = GPUBufferUsage;
    this.argumentBuffer = handle.createBuffer({ size: ARGUMENT_BYTES, usage: UNIFORM | COPY_DST });
    handle.lost.then(({ message, reason }) => (this.lost = message || reason));
    this.starts = [];
    let start = 0;
    for (const size of document.buffers) {
      this.starts.push([start, this.take(size)]);
      start += size;
    }
  }

  /** After weights have come: whether there was memory for them. */
  async settle() {
    const error = await this.handle.popErrorScope();
    if (!error) return;
    this.close();
    throw new NoGpu(`this GPU has no memory for the weights (${error.message})`);
  }

  close() {
    this.handle.destroy();
  }

  // Memory.

  weightAt(offset) {
    const [start, address] = this.starts.findLast(([start]) => start <= offset);
    return address + offset - start;
  }

  loadWeights(offset, bytes) {
    // A part of a file may lie in several buffers.
    for (let done = 0; done < bytes.length; ) {
      const address = this.weightAt(offset + done), following = this.starts.find(([start]) => start > offset + done);
      const end = Math.min(bytes.length, (following?.[0] ?? Infinity) - offset);
      this.handle.queue.writeBuffer(this.#buffer(address), address % SPAN, bytes, done, end - done);
      done = end;
    }
  }

  take(size) {
    if (size > this.largest)
      throw new Error(`an array has ${size} bytes, and a buffer of this GPU at most ${this.largest}; use smaller inputs`);
    const whole = Math.min(rounded(size), Math.floor(this.largest / 4) * 4), holes = this.holes.get(whole);
    if (holes?.length) {
      this.keptBytes -= whole;
      return holes.pop() * SPAN;
    }
    const { STORAGE, COPY_SRC, COPY_DST } = GPUBufferUsage;
    this.buffers.set(this.next, this.handle.createBuffer({ size: whole, usage: STORAGE | COPY_SRC | COPY_DST }));
    return this.next++ * SPAN;
  }

  /** What has been asked for so far may still use it: whoever takes it again comes later. */
  free(address) {
    const number = Math.floor(address / SPAN), { size } = this.buffers.get(number);
    if (this.keptBytes + size > KEPT_BYTES) this.gone.push(number);
    else {
      if (!this.holes.has(size)) this.holes.set(size, []);
      this.holes.get(size).push(number);
      this.keptBytes += size;
    }
  }

  #buffer(address) {
    return this.buffers.get(Math.floor(address / SPAN));
  }

  // What is asked for.

  /** The bytes may change afterwards. */
  write(address, bytes) {
    if (!bytes.length) return;
    // Whole words; the buffer is larger than the array.
    const data = new Uint8Array(Math.ceil(bytes.length / 4) * 4);
    data.set(bytes);
    this.commands.push({ write: data, to: address });
  }

  clear(address, size) {
    if (size) this.commands.push({ clear: address, size: Math.ceil(size / 4) * 4 });
  }

  copy(from, to, size) {
    if (!size || from === to) return;
    if (!(from % 4 || to % 4 || size % 4)) {
      this.commands.push({ copy: from, to, size });
      return;
    }
    const { kernel, chunk } = this.document.copy;
    this.call(kernel, Math.ceil(size / chunk / this.document.kernels[kernel].threads), [from, to, size], 3);
  }

  call(number, rounds, words, count) {
    const kernel = this.document.kernels[number], starts = [], sizes = [], numbers = [];
    let isAligned = true;
    for (let i = 0; i < count; i++) {
      const size = kernel.sizes[i], word = words[i];
      if (size) {
        numbers.push(Math.floor(word / SPAN));
        starts.push(Math.floor((word % SPAN) / size));
        isAligned &&= word % 4 === 0;
      } else if (word !== (word | 0)) throw new Error(`a size of ${kernel.name} is ${word}; positions have 32 bits here`);
      else sizes.push(word);
    }
    if (rounds > GRID_ROW * 65535) throw new Error(`${kernel.name} has ${rounds} workgroups, more than a GPU runs at a time`);
    if (kernel.scratch) numbers.push(this.#scratchOf(4 * kernel.scratch * kernel.threads * rounds));
    if (kernel.tables.length) numbers.push(this.#tablesOf(number));
    // Memories of one buffer share its bindings.
    const first = new Map();
    let following = 1;
    const bounds = numbers.map((n) => {
      if (!first.has(n)) {
        const windows = Math.ceil(this.buffers.get(n).size / this.window);
        first.set(n, { first: following, windows });
        following += windows;
      }
      return first.get(n);
    });
    const most = this.limits.maxStorageBuffersPerShaderStage;
    if (following - 1 > most)
      throw new Error(`${kernel.name} needs ${following - 1} bindings, and this GPU has ${most}; use smaller sizes`);
    const key = Form.key(number, isAligned, bounds);
    if (!this.forms.has(key)) this.forms.set(key, new Form(kernel, isAligned, bounds, this.window / 4));
    this.commands.push({ key, numbers: [...first.keys()], words: [...starts, ...sizes], size: 4 * kernel.arguments, rounds });
  }

  /** Memory for the arrays of threads, of which kernels have one after the other. */
  #scratchOf(size) {
    if (!this.scratch || this.#buffer(this.scratch).size < size) {
      if (this.scratch) this.free(this.scratch);
      this.scratch = this.take(size);
    }
    return this.scratch / SPAN;
  }

  #tablesOf(number) {
    if (!this.tables.has(number)) {
      const words = Uint32Array.from(this.document.kernels[number].tables), address = this.take(words.byteLength);
      this.write(address, new Uint8Array(words.buffer));
      this.tables.set(number, address / SPAN);
    }
    return this.tables.get(number);
  }

  // To the GPU.

  /** Send all that was asked for; the promise of bytes, for pairs of an address and a size. */
  async read(places) {
    const commands = this.commands.splice(0), { handle } = this;
    await this.pipelines.make(new Map(commands.filter((c) => c.key).map((c) => [c.key, this.forms.get(c.key)])));
    handle.pushErrorScope("validation");
    handle.pushErrorScope("out-of-memory");
    const sending = new Sending(this);
    commands.forEach((command) => sending.add(command));
    const slots = this.#collect(sending, places);
    sending.submit();
    this.#destroyGone();
    const said = Promise.all([handle.popErrorScope(), handle.popErrorScope()]);
    let found;
    try {
      if (slots.length) await this.staging.mapAsync(GPUMapMode.READ);
      found = slots.map(([at, size, odd]) =>
        new Uint8Array(this.staging.getMappedRange(at, Math.ceil((odd + size) / 4) * 4).slice(odd, odd + size)));
    } catch (error) {
      const [memory, wrong] = await said;
      throw new Error(this.#failure(memory ?? wrong ?? error));
    }
    const [memory, wrong] = await said;
    if (slots.length) this.staging.unmap();
    if (memory || wrong || this.lost) throw new Error(this.#failure(memory ?? wrong));
    return found;
  }

  #failure(error) {
    return this.lost ? `the GPU was lost (${this.lost}); load the page again` : `the GPU has failed: ${error.message}`;
  }

  /** Copy what will be read, in whole words, to memory that the page may look at; where it lies there. */
  #collect(sending, places) {
    let end = 0;
    const slots = places.map(([address, size]) => {
      const odd = address % 4, slot = [end, size, odd];
      end += Math.ceil((odd + size) / 8) * 8 + 8;
      return slot;
    });
    if (!slots.length) return [];
    if (!this.staging || this.staging.size < end) {
      this.staging?.destroy();
      const { MAP_READ, COPY_DST } = GPUBufferUsage;
      this.staging = this.handle.createBuffer({ size: rounded(end), usage: MAP_READ | COPY_DST });
    }
    const encoder = sending.copies();
    places.forEach(([address, size], i) => {
      if (!size) return;
      const [at, , odd] = slots[i], whole = Math.ceil((odd + size) / 4) * 4;
      encoder.copyBufferToBuffer(this.#buffer(address), (address % SPAN) - odd, this.staging, at, whole);
    });
    return slots;
  }

  #destroyGone() {
    if (!this.gone.length) return;
    const gone = new Set(this.gone.splice(0));
    for (const [key, { numbers }] of this.groups) if (numbers.some((n) => gone.has(n))) this.groups.delete(key);
    for (const number of gone) {
      this.buffers.get(number).destroy();
      this.buffers.delete(number);
    }
  }

  /** The bind group of a command; the same buffers come again. */
  group({ key, numbers, size }) {
    const name = `${size}:${numbers}`;
    let found = this.groups.get(name);
    if (!found) {
      if (this.groups.size >= KEPT_GROUPS) this.groups.clear();
      const resources = [{ buffer: this.argumentBuffer, offset: 0, size }];
      for (const buffer of numbers.map((n) => this.buffers.get(n)))
        for (let offset = 0; offset < buffer.size; offset += this.window)
          resources.push({ buffer, offset, size: Math.min(this.window, buffer.size - offset) });
      const layout = this.pipelines.layout(this.forms.get(key).bindings);
      const entries = resources.map((resource, binding) => ({ binding, resource }));
      this.groups.set(name, (found = { numbers, group: this.handle.createBindGroup({ layout, entries }) }));
    }
    return found.group;
  }
}

/** Commands on their way to the GPU: one encoder, unless bytes of the page come between. */
class Sending {
  constructor(machine) {
    Object.assign(this, { machine, handle: machine.handle, encoder: null, pass: null, used: 0 });
  }

  add(command) {
    const { machine } = this, place = (address) => [machine.buffers.get(Math.floor(address / SPAN)), address % SPAN];
    if (command.key) this.#dispatch(command);
    else if (command.write) {
      // Comes after all that was asked for before.
      this.submit();
      this.handle.queue.writeBuffer(...place(command.to), command.write);
    } else if (command.copy === undefined) this.copies().clearBuffer(...place(command.clear), command.size);
    else this.#copy(place(command.copy), place(command.to), command.size);
  }

  #copy(from, to, size) {
    if (from[0] !== to[0]) {
      this.copies().copyBufferToBuffer(...from, ...to, size);
      return;
    }
    // A buffer is not copied into itself.
    const address = this.machine.take(size), between = this.machine.buffers.get(address / SPAN);
    this.copies().copyBufferToBuffer(...from, between, 0, size);
    this.copies().copyBufferToBuffer(between, 0, ...to, size);
    this.machine.free(address);
  }

  #dispatch(command) {
    const { machine } = this, step = Math.ceil(command.size / ARGUMENT_ALIGN) * ARGUMENT_ALIGN;
    if (this.used + step > ARGUMENT_BYTES) this.submit();
    machine.words.fill(0, this.used / 4, (this.used + command.size) / 4);
    machine.words.set(command.words, this.used / 4);
    this.pass ??= this.#encoder().beginComputePass();
    this.pass.setPipeline(machine.pipelines.get(command.key));
    this.pass.setBindGroup(0, machine.group(command), [this.used]);
    this.pass.dispatchWorkgroups(Math.min(command.rounds, GRID_ROW), Math.ceil(command.rounds / GRID_ROW));
    this.used += step;
  }

  #encoder() {
    return (this.encoder ??= this.handle.createCommandEncoder());
  }

  /** The encoder outside of a pass. */
  copies() {
    this.pass?.end();
    this.pass = null;
    return this.#encoder();
  }

  submit() {
    if (!this.encoder) return;
    const { machine, handle } = this, commands = this.copies().finish();
    if (this.used) handle.queue.writeBuffer(machine.argumentBuffer, 0, machine.words, 0, this.used / 4);
    handle.queue.submit([commands]);
    [this.encoder, this.used] = [null, 0];
  }
}

/** The size of the buffer that so many bytes get. */
const rounded = (size) =>
  size <= MEBIBYTE ? Math.max(256, 2 ** Math.ceil(Math.log2(Math.max(1, size)))) : Math.ceil(size / MEBIBYTE) * MEBIBYTE;

/** How many buffers the kernel with the most of them needs, if no buffer takes several bindings. */
function mostBindings({ programs, kernels, params, buffers }) {
  const bufferOf = (offset) => {
    let number = 0;
    for (let end = buffers[0]; end <= offset; end += buffers[number]) number++;
    return `weights ${number}`;
  };
  const counts = programs.flatMap(({ steps, constants, firstParam }, number) => {
    const weights = new Map(constants.map(([value, offset]) => [value, bufferOf(offset)]));
    if (number === 0) params.forEach((offset, i) => weights.set(firstParam + i, bufferOf(offset)));
    return steps.filter(Array.isArray).map(([kernel, ...given]) => {
      const { scratch, tables } = kernels[kernel];
      const bound = new Set(given.filter(Array.isArray).map(([value]) => weights.get(value) ?? value));
      return bound.size + (scratch ? 1 : 0) + (tables.length ? 1 : 0);
    });
  });
  return Math.max(0, ...counts);
}
