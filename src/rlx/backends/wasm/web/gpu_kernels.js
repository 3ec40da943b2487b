// Kernels of WebGPU: the texts in `gpu.json.gz`, completed for the way in which memory is bound to them.
//
// A kernel reads and writes each of its memories by functions that are written here. Memories that lie in one buffer
// share its bindings, since WebGPU forbids to bind memory twice that is written; a buffer that is larger than a binding
// may be has several.

/** A way to bind memories: of each, the first binding of its buffer and how many bindings that has. */
export class Form {
  constructor(kernel, isAligned, bounds, window) {
    Object.assign(this, { kernel, isAligned, bounds, window });
    this.bindings = bounds.reduce((n, { first, windows }) => Math.max(n, first + windows - 1), 0);
  }

  static key(number, isAligned, bounds) {
    return `${number}${isAligned ? "" : "?"}:${bounds.map(({ first, windows }) => `${first}.${windows}`).join()}`;
  }

  /** The module, whose entry point is `main`. */
  text(prelude) {
    const form = this.kernel.forms[this.isAligned ? 0 : 1];
    if (!form) throw new Error(`kernel ${this.kernel.name} has elements that begin inside of a word; export it again`);
    const isPlain = (call) => call === "read" || call === "store";
    const atomic = new Set(this.bounds.filter((_, i) => !form.calls[i].every(isPlain)).map(({ first }) => first));
    const declared = new Map(), functions = [];
    this.bounds.forEach((bound, i) => {
      const isAtomic = atomic.has(bound.first);
      for (let b = bound.first; b < bound.first + bound.windows; b++)
        declared.set(b, `@group(0) @binding(${b}) var<storage, read_write> w${b}: array<${isAtomic ? "atomic<u32>" : "u32"}>;`);
      for (const call of form.calls[i]) functions.push(this.#access(call, i, bound, isAtomic));
    });
    return [...declared.values(), prelude, ...functions, form.text].join("\n");
  }

  /** The function by which a kernel does something with a word of a memory. */
  #access(call, i, { first, windows }, isAtomic) {
    const done = (word) => {
      if (call === "read") return `return ${isAtomic ? `atomicLoad(&${word})` : word};`;
      if (!isAtomic) return `${word} = x;`;
      return `atomic${call[0].toUpperCase()}${call.slice(1)}(&${word}, x);`;
    };
    const lines = [call === "read" ? `fn read${i}(place: i32) -> u32 {` : `fn ${call}${i}(place: i32, x: u32) {`];
    for (let b = 0; b < windows; b++) {
      const act = done(`w${first + b}[place - ${b * this.window}]`);
      lines.push(b + 1 < windows ? `if (place < ${(b + 1) * this.window}) { ${act} ${call === "read" ? "" : "return;"} }` : act);
    }
    return [...lines, "}"].join("\n");
  }
}

/** The pipelines of a device, made when they are first needed. */
export class Pipelines {
  constructor(device, prelude) {
    Object.assign(this, { device, prelude, made: new Map(), layouts: new Map() });
  }

  /** Have those of forms by their keys; the browser compiles what is missing side by side. */
  async make(forms) {
    const missing = [...forms].filter(([key]) => !this.made.has(key));
    await Promise.all(missing.map(async ([key, form]) => this.made.set(key, await this.#pipeline(form))));
  }

  get(key) {
    return this.made.get(key);
  }

  async #pipeline(form) {
    const module = this.device.createShaderModule({ code: form.text(this.prelude) });
    try {
      const layout = this.device.createPipelineLayout({ bindGroupLayouts: [this.layout(form.bindings)] });
      return await this.device.createComputePipelineAsync({ layout, compute: { module, entryPoint: "main" } });
    } catch (error) {
      const { messages } = await module.getCompilationInfo(), said = messages.find((m) => m.type === "error");
      const where = said ? `line ${said.lineNum}: ${said.message}` : error.message;
      throw new Error(`the browser refuses the kernel ${form.kernel.name}: ${where}`);
    }
  }

  /** Arguments, and so many storage buffers. */
  layout(bindings) {
    let found = this.layouts.get(bindings);
    if (!found) {
      const entries = [{ binding: 0, visibility: GPUShaderStage.COMPUTE, buffer: { type: "uniform", hasDynamicOffset: true } }];
      for (let binding = 1; binding <= bindings; binding++)
        entries.push({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type: "storage" } });
      this.layouts.set(bindings, (found = this.device.createBindGroupLayout({ entries })));
    }
    return found;
  }
}
