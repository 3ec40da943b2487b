// A language model in a page: `program.json` with the notes in `model.json`.
//
//   const model = await LanguageModel.load();
//   for await (const piece of model.generate("Once upon a time", { maxTokens: 32 })) show(piece);
//
// Greedy text, which it is unless a temperature is given, is that of `rlx.load(...).generate` on a CPU.

import { load, reader, readJson } from "./rlx.js";
import { Tokenizer } from "./tokenizer.js";

export class LanguageModel {
  /** The model of a folder, by default that of this file; options are those of `load` in rlx.js. */
  static async load(base = new URL(".", import.meta.url), options = {}) {
    const read = options.read ?? reader(base);
    const notes = await readJson(read, "model.json");
    return new LanguageModel(await load(base, { ...options, read }), notes);
  }

  constructor(program, notes) {
    Object.assign(this, { program, notes, tokenizer: new Tokenizer(notes.tokenizer) });
    this.tokens = [];
    this.caches = [];
    this.capacity = 0;
  }

  /** Whether there is a template for conversations. */
  get chats() {
    return this.notes.chat !== null;
  }

  /** The ids of a conversation: [user, assistant, user, ...]. */
  chatIds(turns) {
    const { start, answer, next } = this.notes.chat;
    const text = turns.map((turn, i) => (i % 2 ? turn : (i ? next : start) + turn + answer)).join("");
    return this.tokenizer.encode(text, false);
  }

  /** The text that follows a prompt (text or ids), piece by piece. `signal` stops it between two tokens. */
  async *generate(prompt, options = {}) {
    const decoder = this.tokenizer.decoder();
    for await (const id of this.generateIds(prompt, options)) {
      const piece = decoder.push(id);
      if (piece) yield piece;
    }
    const rest = decoder.flush();
    if (rest) yield rest;
  }

  async *generateIds(prompt, { maxTokens = 64, temperature = 0, topK = 40, signal } = {}) {
    const ids = typeof prompt === "string" ? this.tokenizer.encode(prompt) : Array.from(prompt);
    if (!ids.length) throw new Error("the prompt has no tokens; this model needs at least one");
    if (ids.length >= this.notes.context)
      throw new Error(`the prompt has ${ids.length} tokens, and the context of this model ${this.notes.context}; give less text`);
    let logits = await this.#read(ids, signal), rested = performance.now();
    for (let written = 0; logits && written < maxTokens; written++) {
      const id = temperature > 0 ? sampled(logits, temperature, topK) : largest(logits);
      if (this.notes.ends.includes(id)) return;
      yield id;
      // Others have a turn now and then: whoever shows the text, or stops it.
      if (performance.now() - rested > 10) {
        await new Promise((resolve) => setTimeout(resolve));
        rested = performance.now();
      }
      if (signal?.aborted || written + 1 === maxTokens || this.tokens.length >= this.notes.context) return;
      logits = await this.#extend([id]);
    }
  }

  /** Logits after a prompt, of which the part that is in the caches already is not computed again; none if stopped. */
  #read(ids, signal) {
    let same = 0;
    while (same < this.tokens.length && same < ids.length - 1 && this.tokens[same] === ids[same]) same++;
    this.tokens.length = same;
    return this.#extend(ids.slice(same), signal);
  }

  async #extend(ids, signal) {
    this.#reserve(this.tokens.length + ids.length);
    let logits;
    for (let at = 0; at < ids.length; at += this.notes.chunk) {
      // A long text is read for seconds: between its parts whoever stops it is heard.
      if (at) await new Promise((resolve) => setTimeout(resolve));
      if (at && signal?.aborted) return undefined;
      logits = await this.#advance(ids.slice(at, at + this.notes.chunk));
    }
    return logits;
  }

  async #advance(ids) {
    const before = this.tokens.length, wrong = ids.find((id) => !(id >= 0 && id < this.notes.vocab));
    if (wrong !== undefined) throw new Error(`token ${wrong} is not one of the ${this.notes.vocab} of this model`);
    const inputs = {
      tokens: { data: Int32Array.from(ids), shape: [1, ids.length] },
      positions: { data: Int32Array.from(ids, (_, i) => before + i), shape: [1, ids.length] },
      kv_len: { data: Int32Array.of(before + ids.length), shape: [1] },
      rows: { data: Int32Array.of(ids.length - 1), shape: [1, 1] },
      ...this.tables,
    };
    this.notes.caches.forEach((name, i) => (inputs[name] = this.caches[i]));
    const [logits] = await this.program.run(inputs);
    this.tokens.push(...ids);
    return logits.data;
  }

  /** Room for sequences of a length, in caches that double; the last place of a cache is spare. */
  #reserve(length) {
    if (length < this.capacity) return;
    let capacity = this.notes.capacity;
    while (capacity - 1 < length) capacity *= 2;
    capacity = Math.min(capacity, this.notes.context + 1);
    const types = new Map(this.program.document.inputs.map((input) => [input.name, input]));
    const sizes = { B: 1, C: capacity };
    const grown = this.notes.caches.map((name) => {
      const { dtype, declared } = types.get(name);
      return this.program.zeros(dtype, declared.map((d) => sizes[d] ?? Number(d)));
    });
    grown.forEach((to, i) => {
      // [1, heads, places, ...]: what there is of each head.
      if (this.caches[i]) to.copyParts(this.caches[i], to.shape[1]);
      this.caches[i]?.free();
    });
    Object.values(this.tables ?? {}).forEach((table) => table.free());
    this.tables = {};
    for (const [name, { angles, gain }] of Object.entries(this.notes.rope)) {
      for (const [part, turn] of [["cos", Math.cos], ["sin", Math.sin]]) {
        const data = new Float32Array(capacity * angles.length);
        // The spare place is no position.
        for (let row = 0; row < capacity; row++)
          angles.forEach((angle, i) => (data[row * angles.length + i] = turn((row === capacity - 1 ? 0 : row) * angle) * gain));
        this.tables[`${name}.${part}`] = this.program.put("f32", [capacity, angles.length], data);
      }
    }
    [this.caches, this.capacity] = [grown, capacity];
  }
}

function largest(logits) {
  let best = 0;
  for (let i = 1; i < logits.length; i++) if (logits[i] > logits[best]) best = i;
  return best;
}

function sampled(logits, temperature, topK) {
  const order = Array.from(logits.keys()).sort((a, b) => logits[b] - logits[a]).slice(0, topK);
  const weights = order.map((id) => Math.exp((logits[id] - logits[order[0]]) / temperature));
  let left = Math.random() * weights.reduce((a, b) => a + b, 0);
  return order[Math.max(0, weights.findIndex((w) => (left -= w) < 0))];
}
