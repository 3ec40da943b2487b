// Types of embedder.js.

import type { LoadOptions, Program, Tensor } from "./rlx.js";

export declare class Embedder {
  static load(base?: string | URL, options?: LoadOptions): Promise<Embedder>;
  readonly program: Program;
  ids(text: string): number[];
  /** With a GPU these are promises. */
  embed(texts: string): Float32Array | Promise<Float32Array>;
  embed(texts: readonly string[]): Float32Array[] | Promise<Float32Array[]>;
  /** Hidden states [texts, tokens, size]; those of padding mean nothing. */
  states(texts: readonly string[]): Tensor<Float32Array> | Promise<Tensor<Float32Array>>;
}

export declare function cosine(a: Float32Array, b: Float32Array): number;
