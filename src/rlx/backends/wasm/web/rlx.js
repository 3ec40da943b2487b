// Runs a program that rlx has exported: `program.wasm`, `program.json` and `weights.*.bin` of one folder; with WebGPU,
// where browser and folder have it, `gpu.json.gz` and `gpu.*.bin`.
//
//   import { load } from "./rlx.js";
//   const program = await load();                        // the folder of this file; or load("https://host/folder/")
//   const [y] = program.run({ x: new Float32Array(8) });  // y.data, y.shape, y.dtype
//
//   const other = await load(undefined, { gpu: true });    // other.device is "webgpu", or other.note says why not
//   const [z] = await other.run({ x: new Float32Array(8) });
//
// Nothing here is specific to a model. Works in browsers and in node.

import { bind, evaluate, iterations } from "./sizes.js";
import { WasmMachine } from "./wasm_machine.js";

export const ARRAYS = {
  f64: Float64Array, f32: Float32Array, f16: Uint16Array, bf16: Uint16Array, i64: BigInt64Array, u64: BigUint64Array,
  i32: Int32Array, u32: Uint32Array, i16: Int16Array, u16: Uint16Array, i8: Int8Array, u8: Uint8Array,
  bool: Uint8Array, c64: Float32Array, c128: Float64Array,
};
const PER_ELEMENT = { c64: 2, c128: 2 };

const count = (shape) => shape.reduce((a, b) => a * b, 1);

/** How many bytes a tensor has. */
export const byteLength = (dtype, shape) =>
  count(shape) * (PER_ELEMENT[dtype] ?? 1) * ARRAYS[dtype].BYTES_PER_ELEMENT;

/** A tensor that stays in the memory of its program: what `Program.zeros` and `Program.put` make. */
export class Resident {
  constructor(program, dtype, shape, address) {
    Object.assign(this, { program, dtype, shape, address });
  }

  get byteLength() {
    return byteLength(this.dtype, this.shape);
  }

  /** The elements where they lie; the view is lost when memory grows. Memory of a GPU cannot be looked at: `read` it. */
  get data() {
    const { machine } = this.program;
    if (machine.isAsync) throw new Error("a tensor in the memory of a GPU has no view; use `await tensor.read()`");
    const { buffer, byteOffset } = machine.view(this.address, this.byteLength);
    return new ARRAYS[this.dtype](buffer, byteOffset, this.byteLength / ARRAYS[this.dtype].BYTES_PER_ELEMENT);
  }

  /** A copy of the elements. */
  async read() {
    return this.program.read(this);
  }

  /** Have equal parts of another tensor at the beginnings of as many equal parts of this one. */
  copyParts(other, count) {
    const [from, to] = [other.byteLength / count, this.byteLength / count];
    for (let i = 0; i < count; i++)
      this.program.machine.copy(other.address + i * from, this.address + i * to, Math.min(from, to));
  }

  free() {
    this.program.machine.free(this.address);
  }
}

/** The files of a folder: by HTTP, or from disk in node. A `version` tells a file from others of its name; `cache` says
 *  what may come from where a browser keeps it, as for `fetch`. */
export function reader(base) {
  const folder = new URL(base);
  return async (name, onBytes, version = "", cache = "default") => {
    const place = new URL(name, folder);
    place.search = version;
    if (place.protocol === "file:") {
      const { readFile } = await import("node:fs/promises");
      const bytes = await readFile(place);
      onBytes?.(bytes.length);
      return bytes;
    }
    const answer = await fetch(place, { cache });
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

/** The JSON document with a name, which may be packed. */
export async function readJson(read, name) {
  const bytes = await read(name);
  try {
    return JSON.parse(new TextDecoder().decode(await unpacked(bytes)));
  } catch (error) {
    throw new Error(`${name} is damaged: ${error.message}; export it again`);
  }
}

/** Bytes that gzip has packed, or that a server has unpacked already. */
async function unpacked(bytes) {
  if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) return bytes;
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** The program of a folder. `onProgress(done, total)` hears how many bytes of weights have come. With several `threads`
 *  kernels are shared with helpers, where memory can be; then it should run in a worker, since a page must not wait.
 *  With `gpu` it runs by WebGPU where browser and folder have it, and else as it does without, with a `note`. */
export async function load(
  base = new URL(".", import.meta.url), { read = reader(base), onProgress, threads = 1, gpu = false } = {},
) {
  const document = await readDocument(read, "program.json");
  let note = "";
  if (gpu && document.gpu) {
    const { GpuMachine, NoGpu } = await import("./gpu_machine.js");
    try {
      const found = await readDocument(read, document.gpu), machine = await GpuMachine.open(found);
      await loadWeights(found, machine, read, onProgress);
      await machine.settle();
      return new Program(found, machine);
    } catch (error) {
      if (!(error instanceof NoGpu)) throw error;
      note = `no WebGPU: ${error.message}`;
    }
  }
  const machine = await WasmMachine.open(document, read, threads);
  await loadWeights(document, machine, read, onProgress);
  return new Program(document, machine, note);
}

async function readDocument(read, name) {
  const document = await readJson(read, name);
  if (document.format !== "rlx.web" || document.version !== 1)
    throw new Error(`${name} is no program that this runtime reads (${document.format} ${document.version})`);
  return document;
}

async function loadWeights(document, machine, read, onProgress) {
  let done = 0, at = 0;
  for (const part of document.parts) {
    const hear = (size) => onProgress?.((done += size), document.weightBytes);
    const version = part.crc32.toString(16), isDamaged = (b) => b.length !== part.size || crc32(b) !== part.crc32;
    let bytes = await read(part.file, hear, version);
    // What a browser has kept of a folder that was not whole yet.
    if (isDamaged(bytes)) bytes = await read(part.file, undefined, version, "reload");
    if (isDamaged(bytes))
      throw new Error(`${part.file} is damaged: its ${bytes.length} bytes are not the ${part.size} that were written; `
        + "copy the folder again, or export it again");
    machine.loadWeights(at, bytes);
    at += part.size;
  }
}

/** A program in memory. Runs follow each other. */
export class Program {
  constructor(document, machine, note = "") {
    Object.assign(this, { document, machine, note, plans: new Map(), last: Promise.resolve() });
    const most = document.programs.flatMap((p) => p.steps).reduce((n, s) => Math.max(n, s.length ?? 0), 1);
    this.words = new Float64Array(most);
    this.params = document.params.map((offset) => machine.weightAt(offset));
  }

  /** "wasm" or "webgpu". */
  get device() {
    return this.machine.device;
  }

  /** How many threads take part in a run. */
  get threads() {
    return this.machine.threads;
  }

  /** End the helpers, if there are some, or let go of the GPU. */
  close() {
    this.machine.close();
  }

  /** What `run` takes: names, types, and shapes in which symbols stand for sizes. */
  get inputs() {
    return this.document.inputs.map(({ name, dtype, declared }) => ({ name, dtype, shape: declared }));
  }

  /** Zeros that stay in memory: an input that need not be copied, and that a program may store over. */
  zeros(dtype, shape) {
    const size = byteLength(dtype, shape), address = this.machine.take(size);
    this.machine.clear(address, size);
    return new Resident(this, dtype, shape, address);
  }

  /** The same with given elements. */
  put(dtype, shape, data) {
    if (!(data instanceof ARRAYS[dtype]) || data.byteLength !== byteLength(dtype, shape))
      throw new Error(`put: ${dtype}[${shape}] has the elements of a ${ARRAYS[dtype].name} of that size`);
    const address = this.machine.take(data.byteLength);
    this.machine.write(address, bytesOf(data));
    return new Resident(this, dtype, shape, address);
  }

  /** A copy of the elements of a resident tensor, or, by a GPU, the promise of one. */
  read(resident) {
    return this.#driven(this.#readOne(resident));
  }

  *#readOne({ dtype, address, byteLength: size }) {
    const [bytes] = yield [[address, size]];
    return new ARRAYS[dtype](bytes.buffer);
  }

  /** The outputs, for typed arrays or `{data, shape}` by name. An output that is stored over a resident input is it. A
   *  program on a GPU gives the promise of them, until which inputs must stay as they are. */
  run(inputs) {
    return this.#driven(this.#run(inputs));
  }

  /** What a generator returns that yields places where it gets bytes. */
  #driven(steps) {
    if (this.machine.isAsync) return (this.last = this.last.then(() => this.#finish(steps), () => this.#finish(steps)));
    let step = steps.next();
    while (!step.done) step = steps.next(this.machine.read(step.value));
    return step.value;
  }

  async #finish(steps) {
    try {
      let step = steps.next();
      while (!step.done) step = steps.next(await this.machine.read(step.value));
      return step.value;
    } finally {
      steps.return();
    }
  }

  *#run(inputs) {
    const given = this.document.inputs.map((declared) => this.#given(declared, inputs[declared.name]));
    const known = new Set(this.document.inputs.map((i) => i.name));
    const unknown = Object.keys(inputs).find((name) => !known.has(name));
    if (unknown !== undefined) throw new Error(`there is no input ${unknown}; there are ${[...known].join(", ")}`);
    const plan = this.#plan(given);
    yield* this.#checkIds(given, plan);
    const main = this.document.programs[0], taken = [];
    const shared = main.overwritten.find((i) => given.some((g, j) => j !== i && g.resident && g.resident === given[i].resident));
    if (shared !== undefined) throw new Error(`${given[shared].name} is stored over, and is another input as well`);
    const take = this.#taking(taken);
    try {
      const arena = take(plan.sizes[main.arena]);
      const places = given.map((g) => (g.resident ? g.resident.address : take(byteLength(g.dtype, g.shape))));
      for (const size of main.stored) places.push(take(plan.sizes[size]));
      given.forEach((g, i) => {
        if (!g.resident) this.machine.write(places[i], bytesOf(g.data));
      });
      const values = new Float64Array(main.addresses);
      values[0] = arena;
      values.set(places, 1);
      values.set(this.params, main.firstParam);
      yield* this.#runProgram(0, values, plan);
      return yield* this.#outputs(main, plan, values, given, places);
    } finally {
      taken.forEach((address) => this.machine.free(address));
    }
  }

  #taking(taken) {
    return (size) => {
      const address = this.machine.take(size);
      taken.push(address);
      return address;
    };
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
    if (!Array.isArray(step)) return 0;
    const numbers = step.slice(1).filter((a) => typeof a === "number").map((i) => sizes[i]);
    return iterations(this.document.grids[step[0]], numbers);
  }

  *#checkIds(given, plan) {
    for (const [op, key, sizes] of this.document.ids) {
      const { data, resident } = given.find((g) => g.name === key);
      const ids = data ?? (yield* this.#readOne(resident));
      for (let i = 0; i < ids.length; i++) {
        const size = plan.sizes[sizes[i % sizes.length]], id = Math.trunc(Number(ids[i]));
        if (id < -size || id >= size)
          throw new Error(`${op}: ${key} holds ${id}, but the indexed axis has size ${size}`);
      }
    }
  }

  *#outputs(main, plan, values, given, places) {
    const moved = new Map(main.moved), found = this.document.outputs.map(({ dtype, shape: dims }, i) => {
      const shape = dims.map((d) => plan.sizes[d]), [value, offset] = main.outputs[i], number = main.returned[i];
      const from = number >= 0 ? places[number] : values[value] + plan.sizes[offset];
      return { dtype, shape, from, size: byteLength(dtype, shape), resident: given[moved.get(i) ?? number]?.resident };
    });
    const bytes = yield found.filter((f) => !f.resident).map(({ from, size }) => [from, size]);
    // After all have been read: what is stored over here may be one of the others.
    for (const i of moved.keys())
      if (found[i].resident) this.machine.copy(found[i].from, found[i].resident.address, found[i].size);
    return found.map(({ resident, dtype, shape }) =>
      resident ?? { dtype, shape, data: new ARRAYS[dtype](bytes.shift().buffer) });
  }

  *#runProgram(number, values, plan) {
    const program = this.document.programs[number], rounds = plan.rounds[number];
    for (const [value, offset] of program.constants) values[value] = this.machine.weightAt(offset);
    for (let i = 0; i < program.steps.length; i++) {
      const step = program.steps[i];
      if (Array.isArray(step)) this.#call(step, rounds[i], values, plan.sizes);
      else yield* this.#loop(step, values, plan);
    }
  }

  #call(step, rounds, values, sizes) {
    if (rounds === 0) return;
    for (let i = 1; i < step.length; i++) {
      const argument = step[i];
      this.words[i - 1] = typeof argument === "number" ? sizes[argument] : values[argument[0]] + sizes[argument[1]];
    }
    this.machine.call(step[0], rounds, this.words, step.length - 1);
  }

  // Loops. A body is a program whose inputs and results lie where the loop says.

  *#loop(step, values, plan) {
    const place = ([value, offset]) => values[value] + plan.sizes[offset];
    const operands = step.operands.map(place), results = step.results.map(place);
    const bytes = step.bytes.map((i) => plan.sizes[i]), taken = [], take = this.#taking(taken);
    try {
      const bodies = step.bodies.map((number) => this.#body(number, plan, take));
      if (step.loop === "scan") yield* this.#scan(step, bodies[0], operands, results, bytes, plan, take);
      else if (step.loop === "while") yield* this.#while(step, bodies, operands, results, bytes, take);
      else yield* this.#branch(bodies, operands, results, take);
    } finally {
      taken.forEach((address) => this.machine.free(address));
    }
  }

  /** `yield* body.run(inputs, results)`, by addresses. */
  #body(number, plan, take) {
    const program = this.document.programs[number], values = new Float64Array(program.addresses);
    const runProgram = (...given) => this.#runProgram(...given), { machine } = this;
    values[0] = take(plan.sizes[program.arena]);
    return {
      inputBytes: program.inputs.map((i) => plan.sizes[i]),
      outputBytes: program.outputs.map(([, , size]) => plan.sizes[size]),
      isInPlace: (i) => program.returned[i] === i,
      *run(inputs, results) {
        values.set(inputs, 1);
        program.returned.forEach((to, i) => {
          if (to >= 0) values[1 + to] = results[i];
        });
        yield* runProgram(number, values, plan);
        program.outputs.forEach(([value, offset, size], i) => {
          if (program.returned[i] < 0) machine.copy(values[value] + plan.sizes[offset], results[i], plan.sizes[size]);
        });
      },
    };
  }

  *#scan(step, body, operands, results, bytes, plan, take) {
    const { carries, shared, trajectory, checkpoints } = step, rounds = plan.sizes[step.length];
    const isKept = trajectory && !checkpoints;
    if (rounds === 0) {
      if (!trajectory) for (let i = 0; i < carries; i++) this.machine.copy(operands[i], results[i], bytes[i]);
      return;
    }
    const row = (start, size, number, all) => start + size * (step.reverse ? all - 1 - number : number);
    const size = body.outputBytes;
    // Where each carry is, and two places that take turns.
    const current = operands.slice(0, carries), turns = [];
    for (let i = 0; i < carries; i++) {
      if (body.isInPlace(i)) this.machine.copy(current[i], (current[i] = results[i]), size[i]);
      turns.push(body.isInPlace(i) || isKept ? null : [take(size[i]), take(size[i])]);
    }
    for (let round = 0; round < rounds; round++) {
      const rows = operands.slice(carries + shared).map((x, i) => row(x, body.inputBytes[carries + shared + i], round, rounds));
      const stored = results.map((to, i) => {
        if (i >= carries || (isKept && !body.isInPlace(i))) return row(to, size[i], round, rounds);
        return turns[i] ? turns[i][round % 2] : current[i];
      });
      yield* body.run([...current, ...operands.slice(carries, carries + shared), ...rows], stored);
      for (let i = 0; i < carries; i++) {
        current[i] = stored[i];
        const kept = Math.floor((round * checkpoints) / rounds);
        if (trajectory && checkpoints) this.machine.copy(stored[i], row(results[i], size[i], kept, checkpoints), size[i]);
      }
    }
    if (!trajectory) for (let i = 0; i < carries; i++) this.machine.copy(current[i], results[i], size[i]);
  }

  *#while(step, [condition, body], operands, results, bytes, take) {
    const carries = results.length, others = operands.slice(carries), holds = take(1);
    let current = operands.slice(0, carries);
    const turns = current.map((start, i) => {
      if (!body.isInPlace(i)) return [take(bytes[i]), take(bytes[i])];
      this.machine.copy(start, results[i], bytes[i]);
      current[i] = results[i];
      return [results[i], results[i]];
    });
    for (let round = 0; round < (step.limit ?? Infinity); round++) {
      yield* condition.run([...current, ...others], [holds]);
      if (!(yield [[holds, 1]])[0][0]) break;
      const stored = turns.map((pair) => pair[round % 2]);
      yield* body.run([...current, ...others], stored);
      current = stored;
    }
    current.forEach((from, i) => this.machine.copy(from, results[i], bytes[i]));
  }

  *#branch([predicate, then, otherwise], operands, results, take) {
    const holds = take(1);
    yield* predicate.run([operands[0]], [holds]);
    const [[isTrue]] = yield [[holds, 1]];
    yield* (isTrue ? then : otherwise).run(operands.slice(1), results);
  }
}

const bytesOf = (view) => new Uint8Array(view.buffer, view.byteOffset, view.byteLength);

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
