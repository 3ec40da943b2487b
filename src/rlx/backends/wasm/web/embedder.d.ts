// Types of embedder.js.

import type { LoadOptions, Program, Tensor, TypedArray } from "./rlx.js";

export declare class Embedder {
  static load(base?: string | URL, options?: LoadOptions & { gpu?: false }): Promise<Embedder>;
  static load(base: string | URL | undefined, options: LoadOptions): Promise<AwaitedEmbedder>;
  readonly program: Program;
  ids(text: string): number[];
  embed(texts: string): Float32Array;
  embed(texts: readonly string[]): Float32Array[];
  /** Hidden states [texts, tokens, size]; those of padding mean nothing. */
  states(texts: readonly string[]): Tensor<Float32Array>;
}

/** The same where a GPU may run it, and vectors may be promises. */
export interface AwaitedEmbedder extends Pick<Embedder, "ids"> {
  readonly program: Program<Record<string, TypedArray | Tensor>, Tensor[], Tensor[] | Promise<Tensor[]>>;
  embed(texts: string): Float32Array | Promise<Float32Array>;
  embed(texts: readonly string[]): Float32Array[] | Promise<Float32Array[]>;
  states(texts: readonly string[]): Tensor<Float32Array> | Promise<Tensor<Float32Array>>;
}

export declare function cosine(a: Float32Array, b: Float32Array): number;
