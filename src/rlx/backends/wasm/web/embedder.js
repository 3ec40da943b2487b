// A text encoder in a page: texts to vectors.
//
//   const embedder = await Embedder.load();
//   const [a, b] = embedder.embed(["one text", "another text"]);   // a Float32Array each
//   cosine(a, b);

import { load, reader, readJson } from "./rlx.js";
import { Tokenizer } from "./tokenizer.js";

export class Embedder {
  /** The encoder of a folder, by default that of this file; options are those of `load` in rlx.js. */
  static async load(base = new URL(".", import.meta.url), options = {}) {
    const read = options.read ?? reader(base);
    const notes = await readJson(read, "model.json");
    return new Embedder(await load(base, { ...options, read }), notes);
  }

  constructor(program, notes) {
    Object.assign(this, { program, notes, tokenizer: new Tokenizer(notes.tokenizer) });
  }

  /** The tokens of a text, cut to what the model reads. */
  ids(text) {
    const { before, after } = this.notes.tokenizer;
    const plain = this.tokenizer.encode(this.notes.lowercase ? text.toLowerCase() : text, false);
    return [...before, ...plain.slice(0, this.notes.context - before.length - after.length), ...after];
  }

  /** One vector for each text; a single string gives a single vector. With a GPU it is the promise of them. */
  embed(texts) {
    if (!this.notes.pools) throw new Error("this encoder gives no vectors of texts; use `states`");
    const many = typeof texts === "string" ? [texts] : texts;
    if (!many.length) return [];
    return then(this.#run(many), ([, { data, shape }]) => {
      const vectors = many.map((_, i) => data.slice(i * shape[1], (i + 1) * shape[1]));
      return typeof texts === "string" ? vectors[0] : vectors;
    });
  }

  /** The hidden states [texts, tokens, size] of texts; those of padding mean nothing. */
  states(texts) {
    return then(this.#run(texts), ([states]) => states);
  }

  #run(texts) {
    const rows = texts.map((text) => this.ids(text)), length = Math.max(1, ...rows.map((row) => row.length));
    const ids = new Int32Array(rows.length * length).fill(this.notes.pad);
    rows.forEach((row, i) => ids.set(row, i * length));
    const inputs = {
      ids: { data: ids, shape: [rows.length, length] },
      lengths: { data: Int32Array.from(rows, (row) => row.length), shape: [rows.length] },
    };
    for (const [name, { angles, gain }] of Object.entries(this.notes.rope))
      for (const [part, turn] of [["cos", Math.cos], ["sin", Math.sin]]) {
        const data = Float32Array.from({ length: length * angles.length }, (_, i) =>
          turn(Math.floor(i / angles.length) * angles[i % angles.length]) * gain);
        inputs[`${name}.${part}`] = { data, shape: [length, angles.length] };
      }
    return this.program.run(inputs);
  }
}

/** A function of a value, or of what a promise will give. */
const then = (found, f) => (found instanceof Promise ? found.then(f) : f(found));

/** How alike two vectors are, from -1 to 1. */
export function cosine(a, b) {
  let dot = 0, aa = 0, bb = 0;
  for (let i = 0; i < a.length; i++) [dot, aa, bb] = [dot + a[i] * b[i], aa + a[i] * a[i], bb + b[i] * b[i]];
  return dot / Math.sqrt(aa * bb || 1);
}
