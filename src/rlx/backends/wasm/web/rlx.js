// Runs a program that rlx has exported: `program.wasm`, `program.json` and `weights.*.bin` of one folder.
//
//   import { load } from "./rlx.js";
//   const program = await load();                        // the folder of this file; or load("https://host/folder/")
//   const [y] = program.run({ x: new Float32Array(8) });  // y.data, y.shape, y.dtype
//
// Nothing here is specific to a model. Works in browsers and in node.

import { Team, canShare } from "./threads.js";

const PAGE = 65536, LIMIT = 65536 * PAGE, ALIGN = 64;
const ARRAYS = {
  f64: Float64Array, f32: Float32Array, f16: Uint16Array, bf16: Uint16Array, i64: BigInt64Array, u64: BigUint64Array,
  i32: Int32Array, u32: Uint32Array, i16: Int16Array, u16: Uint16Array, i8: Int8Array, u8: Uint8Array,
  bool: Uint8Array, c64: Float32Array, c128: Float64Array,
};
const PER_ELEMENT = { c64: 2, c128: 2 };

const aligned = (size) => Math.ceil(size / ALIGN) * ALIGN;
const count = (shape) => shape.reduce((a, b) => a * b, 1);

/** How many bytes a tensor has. */
export const byteLength = (dtype, shape) =>
  count(shape) * (PER_ELEMENT[dtype] ?? 1) * ARRAYS[dtype].BYTES_PER_ELEMENT;

/** A tensor that stays in the memory of its program: what `Program.zeros` makes. */
export class Resident {
  constructor(program, dtype, shape, address) {
    Object.assign(this, { program, dtype, shape, address });
  }

  /** The elements where they lie; the view is lost when memory grows. */
  get data() {
    const length = count(this.shape) * (PER_ELEMENT[this.dtype] ?? 1);
    return new ARRAYS[this.dtype](this.program.memory.buffer, this.address, length);
  }

  free() {
    this.program.heap.free(this.address);
  }
}

/** The files of a folder: by HTTP, or from disk in node. A `version` tells a file from others of its name. */
export function reader(base) {
  const folder = new URL(base);
  return async (name, onBytes, version = "") => {
    const place = new URL(name, folder);
    place.search = version;
    if (place.protocol === "file:") {
      const { readFile } = await import("node:fs/promises");
      const bytes = await readFile(place);
      onBytes?.(bytes.length);
      return bytes;
    }
    const answer = await fetch(place);
    if (!answer.ok) throw new Error(`${name}: the server answers ${answer.status} ${answer.statusText}`);
    if (!answer.body || !onBytes) return new Uint8Array(await answer.arrayBuffer());
    const pieces = [];
    let size = 0;
    for (const stream = answer.body.getReader(); ; ) {
      const { done, value } = await stream.read();
      if (done) break;
      pieces.push(value);
      size += value.length;
      onBytes(value.length);
    }
    const whole = new Uint8Array(size);
    let at = 0;
    for (const piece of pieces) {
      whole.set(piece, at);
      at += piece.length;
    }
    return whole;
  };
}

/** The JSON document with a name. */
export async function readJson(read, name) {
  const text = new TextDecoder().decode(await read(name));
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${name} is damaged: ${error.message}; export it again`);
  }
}

/** The program of a folder. `onProgress(done, total)` hears how many bytes of weights have come. With several `threads`
 *  kernels are shared with helpers, where memory can be; then it should run in a worker, since a page must not wait. */
export async function load(base = new URL(".", import.meta.url), { read = reader(base), onProgress, threads = 1 } = {}) {
  const document = await readJson(read, "program.json");
  if (document.format !== "rlx.web" || document.version !== 1)
    throw new Error(`program.json is no program that this runtime reads (${document.format} ${document.version})`);
  const file = WebAssembly.validate(relaxedModule()) ? "relaxed.wasm" : "program.wasm";
  const code = Uint8Array.from(await read(file)), shared = threads > 1 && canShare();
  // The same code, for memory that is shared.
  if (shared) code[document.memoryFlags[file]] |= 2;
  const start = aligned(document.dataEnd), needed = start + document.weightBytes;
  if (needed > LIMIT) throw new Error(`the weights need ${needed} bytes, and WebAssembly has ${LIMIT}`);
  const memory = new WebAssembly.Memory({ initial: Math.ceil(needed / PAGE) + 1, maximum: LIMIT / PAGE, shared });
  let done = 0, at = start;
  for (const part of document.parts) {
    const hear = (size) => onProgress?.((done += size), document.weightBytes);
    const bytes = await read(part.file, hear, part.crc32.toString(16));
    if (bytes.length !== part.size || crc32(bytes) !== part.crc32)
      throw new Error(`${part.file} is damaged: its ${bytes.length} bytes are not the ${part.size} that were written`);
    new Uint8Array(memory.buffer, at, bytes.length).set(bytes);
    at += part.size;
  }
  const { module, instance } = await WebAssembly.instantiate(code, { env: { memory } });
  const program = new Program(document, instance.exports, memory, start);
  if (shared) {
    const takeStack = (size) => program.heap.take(size);
    program.team = await Team.start(threads - 1, module, memory, program.kernels, takeStack);
  }
  return program;
}

/** The smallest module with the instruction that multiplies and adds, which not all engines have. */
function relaxedModule() {
  const constant = [0xfd, 0x0c, ...new Array(16).fill(0)];
  const body = [0, ...constant, ...constant, ...constant, 0xfd, 0x85, 0x02, 0x1a, 0x0b];
  return Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0, 1, 4, 1, 0x60, 0, 0, 3, 2, 1, 0, 10, body.length + 2, 1, body.length, ...body);
}

/** A program in memory. Runs follow each other. */
export class Program {
  constructor(document, kernels, memory, start) {
    this.document = document;
    this.memory = memory;
    this.heap = new Heap(memory, aligned(start + document.weightBytes));
    this.kernels = document.grids.map((_, i) => kernels[`k${i}`]);
    this.weights = start;
    this.plans = new Map();
    const most = document.programs.flatMap((p) => p.steps).reduce((n, s) => Math.max(n, s.length ?? 0), 1);
    this.slots = this.heap.take(8 * most);
    this.team = null;
  }

  /** How many threads take part in a run. */
  get threads() {
    return this.team?.threads ?? 1;
  }

  /** End the helpers, if there are some. */
  close() {
    this.team?.close();
    this.team = null;
  }

  /** What `run` takes: names, types, and shapes in which symbols stand for sizes. */
  get inputs() {
    return this.document.inputs.map(({ name, dtype, declared }) => ({ name, dtype, shape: declared }));
  }

  /** Zeros that stay in memory: an input that need not be copied, and that a program may store over. */
  zeros(dtype, shape) {
    const size = byteLength(dtype, shape), address = this.heap.take(size);
    new Uint8Array(this.memory.buffer, address, size).fill(0);
    return new Resident(this, dtype, shape, address);
  }

  /** The outputs, for typed arrays or `{data, shape}` by name. An output that is stored over a resident input is it. */
  run(inputs) {
    const given = this.document.inputs.map((declared) => this.#given(declared, inputs[declared.name]));
    const known = new Set(this.document.inputs.map((i) => i.name));
    const unknown = Object.keys(inputs).find((name) => !known.has(name));
    if (unknown !== undefined) throw new Error(`there is no input ${unknown}; there are ${[...known].join(", ")}`);
    const plan = this.#plan(given);
    this.#checkIds(given, plan);
    const main = this.document.programs[0], taken = [];
    const shared = main.overwritten.find((i) => given.some((g, j) => j !== i && g.resident && g.resident === given[i].resident));
    if (shared !== undefined) throw new Error(`${given[shared].name} is stored over, and is another input as well`);
    const take = (size) => {
      const address = this.heap.take(size);
      taken.push(address);
      return address;
    };
    try {
      const arena = take(plan.sizes[main.arena]);
      const places = given.map((g) => (g.resident ? g.resident.address : take(byteLength(g.dtype, g.shape))));
      for (const size of main.stored) places.push(take(plan.sizes[size]));
      given.forEach((g, i) => {
        if (!g.resident) this.#bytes(places[i], g.data.byteLength).set(bytesOf(g.data));
      });
      const values = new Float64Array(main.addresses);
      values[0] = arena;
      values.set(places, 1);
      this.document.params.forEach((offset, i) => (values[main.firstParam + i] = this.weights + offset));
      this.#runProgram(0, values, plan);
      return this.document.outputs.map((type, i) => this.#output(type, i, main, plan, values, given, places));
    } finally {
      taken.forEach((address) => this.heap.free(address));
    }
  }

  #bytes(address, size) {
    return new Uint8Array(this.memory.buffer, address, size);
  }

  #given(declared, value) {
    const { name, dtype } = declared, says = `${name} is ${dtype}[${declared.declared.join(",")}]`;
    if (value === undefined) throw new Error(`no value for input ${says}`);
    if (value instanceof Resident) {
      if (value.dtype !== dtype || value.program !== this) throw new Error(`input ${says}, got a resident ${value.dtype}`);
      return { name, dtype, shape: value.shape, resident: value };
    }
    const data = ArrayBuffer.isView(value) ? value : value.data;
    if (!(data instanceof ARRAYS[dtype])) throw new Error(`input ${says}: give a ${ARRAYS[dtype].name}`);
    const shape = ArrayBuffer.isView(value) ? this.#shapeOf(declared, data, says) : Array.from(value.shape);
    if (shape.length !== declared.shape.length) throw new Error(`input ${says}, got the shape [${shape}]`);
    if (byteLength(dtype, shape) !== data.byteLength)
      throw new Error(`input ${says}: the shape [${shape}] does not have ${data.length} elements`);
    return { name, dtype, shape, data };
  }

  /** The shape of an array that was given without one: all sizes but one are fixed. */
  #shapeOf(declared, data, says) {
    const dims = declared.shape.map((i) => this.document.sizes[i]);
    const open = dims.filter((d) => typeof d !== "number").length;
    const fixed = dims.reduce((a, d) => (typeof d === "number" ? a * d : a), PER_ELEMENT[declared.dtype] ?? 1);
    if (open > 1 || (open && data.length % fixed)) throw new Error(`input ${says}: give {data, shape}`);
    return dims.map((d) => (typeof d === "number" ? d : data.length / fixed));
  }

  /** The sizes of everything, for the shapes of inputs; those of the last shapes are kept. */
  #plan(given) {
    const key = given.map((g) => g.shape.join()).join(";");
    let plan = this.plans.get(key);
    if (!plan) {
      const binding = bind(this.document, given);
      const sizes = this.document.sizes.map((s) => evaluate(s, binding));
      for (const [left, right, relation, reason] of this.document.constraints) {
        const [a, b] = [evaluate(left, binding), evaluate(right, binding)];
        if (Number.isNaN(a + b) || (relation === "==" ? a === b : a <= b)) continue;
        throw new Error(`${reason}, but they are ${a} and ${b}; give arrays of sizes for which it holds`);
      }
      plan = { sizes, rounds: this.document.programs.map((p) => p.steps.map((s) => this.#rounds(s, sizes))) };
      if (this.plans.size >= 64) this.plans.delete(this.plans.keys().next().value);
    }
    this.plans.delete(key);
    this.plans.set(key, plan);
    return plan;
  }

  /** How many iterations a kernel has. */
  #rounds(step, sizes) {
    if (!Array.isArray(step)) return 0n;
    const [literals, steps, result] = this.document.grids[step[0]];
    if (result === null) return 1n;
    const registers = step.slice(1).filter((a) => typeof a === "number").map((i) => sizes[i]);
    registers.push(...literals);
    for (const [op, a, b] of steps) registers.push(GRID_OPS[op](registers[a], registers[b]));
    return BigInt(Math.max(0, registers[result]));
  }

  #checkIds(given, plan) {
    for (const [op, key, sizes] of this.document.ids) {
      const { data, resident } = given.find((g) => g.name === key);
      const ids = data ?? resident.data;
      for (let i = 0; i < ids.length; i++) {
        const size = plan.sizes[sizes[i % sizes.length]], id = Math.trunc(Number(ids[i]));
        if (id < -size || id >= size)
          throw new Error(`${op}: ${key} holds ${id}, but the indexed axis has size ${size}`);
      }
    }
  }

  #output(type, i, main, plan, values, given, places) {
    const { dtype } = type, shape = type.shape.map((d) => plan.sizes[d]), size = byteLength(dtype, shape);
    const [value, offset] = main.outputs[i];
    let from = values[value] + plan.sizes[offset], number = main.returned[i];
    if (number >= 0) from = places[number];
    const moved = main.moved.find(([output]) => output === i);
    if (moved) {
      number = moved[1];
      this.#copy(from, places[number], size);
      from = places[number];
    }
    if (number >= 0 && number < given.length && given[number].resident) return given[number].resident;
    return { dtype, shape, data: new ARRAYS[dtype](Uint8Array.from(this.#bytes(from, size)).buffer) };
  }

  #copy(from, to, size) {
    if (size && from !== to) new Uint8Array(this.memory.buffer).copyWithin(to, from, from + size);
  }

  #runProgram(number, values, plan) {
    const program = this.document.programs[number], rounds = plan.rounds[number];
    for (const [value, offset] of program.constants) values[value] = this.weights + offset;
    program.steps.forEach((step, i) => {
      if (Array.isArray(step)) this.#call(step, rounds[i], values, plan.sizes);
      else this.#loop(step, values, plan);
    });
  }

  /** Arguments are words of 64 bits; addresses are below 2^32, sizes are exact in a float. */
  #call(step, rounds, values, sizes) {
    if (rounds === 0n) return;
    const words = new Int32Array(this.memory.buffer, this.slots, 2 * step.length);
    for (let i = 1; i < step.length; i++) {
      const argument = step[i];
      const word = typeof argument === "number" ? sizes[argument] : values[argument[0]] + sizes[argument[1]];
      words[2 * i - 2] = word % 4294967296;
      words[2 * i - 1] = Math.floor(word / 4294967296);
    }
    if (this.team) this.team.run(step[0], this.slots, rounds);
    else this.kernels[step[0]](this.slots, 0n, rounds);
  }

  // Loops. A body is a program whose inputs and results lie where the loop says.

  #loop(step, values, plan) {
    const place = ([value, offset]) => values[value] + plan.sizes[offset];
    const operands = step.operands.map(place), results = step.results.map(place);
    const bytes = step.bytes.map((i) => plan.sizes[i]), taken = [];
    const take = (size) => {
      const address = this.heap.take(size);
      taken.push(address);
      return address;
    };
    try {
      const bodies = step.bodies.map((number) => this.#body(number, plan, take));
      if (step.loop === "scan") this.#scan(step, bodies[0], operands, results, bytes, plan, take);
      else if (step.loop === "while") this.#while(step, bodies, operands, results, bytes, take);
      else this.#branch(bodies, operands, results, take);
    } finally {
      taken.forEach((address) => this.heap.free(address));
    }
  }

  /** `body.run(inputs, results)`, by addresses. */
  #body(number, plan, take) {
    const program = this.document.programs[number], values = new Float64Array(program.addresses);
    values[0] = take(plan.sizes[program.arena]);
    return {
      inputBytes: program.inputs.map((i) => plan.sizes[i]),
      outputBytes: program.outputs.map(([, , size]) => plan.sizes[size]),
      isInPlace: (i) => program.returned[i] === i,
      run: (inputs, results) => {
        values.set(inputs, 1);
        program.returned.forEach((to, i) => {
          if (to >= 0) values[1 + to] = results[i];
        });
        this.#runProgram(number, values, plan);
        program.outputs.forEach(([value, offset, size], i) => {
          if (program.returned[i] < 0) this.#copy(values[value] + plan.sizes[offset], results[i], plan.sizes[size]);
        });
      },
    };
  }

  #scan(step, body, operands, results, bytes, plan, take) {
    const { carries, shared, trajectory, checkpoints } = step, rounds = plan.sizes[step.length];
    const isKept = trajectory && !checkpoints;
    if (rounds === 0) {
      if (!trajectory) for (let i = 0; i < carries; i++) this.#copy(operands[i], results[i], bytes[i]);
      return;
    }
    const row = (start, size, number, all) => start + size * (step.reverse ? all - 1 - number : number);
    const size = body.outputBytes;
    // Where each carry is, and two places that take turns.
    const current = operands.slice(0, carries), turns = [];
    for (let i = 0; i < carries; i++) {
      if (body.isInPlace(i)) this.#copy(current[i], (current[i] = results[i]), size[i]);
      turns.push(body.isInPlace(i) || isKept ? null : [take(size[i]), take(size[i])]);
    }
    for (let round = 0; round < rounds; round++) {
      const rows = operands.slice(carries + shared).map((x, i) => row(x, body.inputBytes[carries + shared + i], round, rounds));
      const stored = results.map((to, i) => {
        if (i >= carries || (isKept && !body.isInPlace(i))) return row(to, size[i], round, rounds);
        return turns[i] ? turns[i][round % 2] : current[i];
      });
      body.run([...current, ...operands.slice(carries, carries + shared), ...rows], stored);
      for (let i = 0; i < carries; i++) {
        current[i] = stored[i];
        const kept = Math.floor((round * checkpoints) / rounds);
        if (trajectory && checkpoints) this.#copy(stored[i], row(results[i], size[i], kept, checkpoints), size[i]);
      }
    }
    if (!trajectory) for (let i = 0; i < carries; i++) this.#copy(current[i], results[i], size[i]);
  }

  #while(step, [condition, body], operands, results, bytes, take) {
    const carries = results.length, others = operands.slice(carries), holds = take(1);
    let current = operands.slice(0, carries);
    const turns = current.map((start, i) => {
      if (!body.isInPlace(i)) return [take(bytes[i]), take(bytes[i])];
      this.#copy(start, results[i], bytes[i]);
      current[i] = results[i];
      return [results[i], results[i]];
    });
    for (let round = 0; round < (step.limit ?? Infinity); round++) {
      condition.run([...current, ...others], [holds]);
      if (!this.#bytes(holds, 1)[0]) break;
      const stored = turns.map((pair) => pair[round % 2]);
      body.run([...current, ...others], stored);
      current = stored;
    }
    current.forEach((from, i) => this.#copy(from, results[i], bytes[i]));
  }

  #branch([predicate, then, otherwise], operands, results, take) {
    const holds = take(1);
    predicate.run([operands[0]], [holds]);
    (this.#bytes(holds, 1)[0] ? then : otherwise).run(operands.slice(1), results);
  }
}

const divide = (a, b) => Math.trunc(a / b);
const GRID_OPS = {
  add: (a, b) => a + b, sub: (a, b) => a - b, mul: (a, b) => a * b, div: divide, rem: (a, b) => a % b,
  min: Math.min, max: Math.max,
};
const SIZE_OPS = {
  floordiv: (a, b) => Math.floor(a / b), ceildiv: (a, b) => Math.ceil(a / b), mod: (a, b) => a - b * Math.floor(a / b),
  max: Math.max, min: Math.min,
};

/** The number that a size is; NaN where a symbol has none. */
function evaluate(size, binding) {
  if (typeof size === "number") return size;
  let total = 0;
  for (const [coefficient, ...factors] of size) {
    let product = coefficient;
    for (const f of factors)
      product *= typeof f === "string" ? binding[f] ?? NaN : SIZE_OPS[f[0]](evaluate(f[1], binding), evaluate(f[2], binding));
    total += product;
  }
  return total;
}

/** The sizes that symbols have, from the shapes of inputs: those of `a*S + b` in which S is the only unknown. */
function bind(document, given) {
  const binding = {}, pending = [];
  document.inputs.forEach((declared, i) =>
    declared.shape.forEach((size, axis) => pending.push([declared, axis, document.sizes[size], given[i].shape[axis]])));
  for (let before = -1; before !== Object.keys(binding).length; ) {
    before = Object.keys(binding).length;
    for (const [, , dim, size] of pending) {
      const open = symbols(dim).filter((s) => !(s in binding));
      if (open.length !== 1) continue;
      const at = (value) => evaluate(dim, { ...binding, [open[0]]: value });
      const slope = at(1) - at(0), value = (size - at(0)) / slope;
      if (Number.isInteger(value) && value >= 0 && at(value) === size) binding[open[0]] = value;
    }
  }
  for (const [declared, axis, dim, size] of pending) {
    const value = evaluate(dim, binding);
    if (value === size) continue;
    const known = typeof dim === "number" || Number.isNaN(value) ? "" : ` = ${value}`;
    throw new Error(`input ${declared.name}: axis ${axis} must be ${declared.declared[axis]}${known}, got ${size}`);
  }
  return binding;
}

function symbols(size) {
  if (typeof size === "number") return [];
  const inside = (f) => (typeof f === "string" ? [f] : f.slice(1).flatMap(symbols));
  return [...new Set(size.flatMap(([, ...factors]) => factors.flatMap(inside)))];
}

const bytesOf = (view) => new Uint8Array(view.buffer, view.byteOffset, view.byteLength);

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

const CRC = new Int32Array(256).map((_, n) => {
  for (let bit = 0; bit < 8; bit++) n = n & 1 ? (n >>> 1) ^ 0xedb88320 : n >>> 1;
  return n;
});

/** The CRC-32 of bytes, as zlib has it. */
export function crc32(bytes) {
  let crc = -1;
  for (let i = 0; i < bytes.length; i++) crc = (crc >>> 8) ^ CRC[(crc ^ bytes[i]) & 255];
  return ~crc >>> 0;
}
