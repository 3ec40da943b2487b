// Types of language_model.js.

import type { LoadOptions, Program, Tensor, TypedArray } from "./rlx.js";

export interface WritingOptions {
  /** 64 unless told. */
  maxTokens?: number;
  /** 0, which is greedy, unless told. */
  temperature?: number;
  /** With a temperature, how many of the likeliest tokens are chosen from: 40 unless told. */
  topK?: number;
  /** Stops between two tokens. */
  signal?: AbortSignal;
}

export declare class LanguageModel {
  static load(base?: string | URL, options?: LoadOptions): Promise<LanguageModel>;
  readonly program: Program<Record<string, TypedArray | Tensor>, Tensor[], Tensor[] | Promise<Tensor[]>>;
  readonly tokenizer: { encode(text: string, addSpecial?: boolean): number[]; decode(ids: number[]): string };
  /** Whether there is a template for conversations. */
  readonly chats: boolean;
  /** The ids of a conversation: [user, assistant, user, ...]. */
  chatIds(turns: readonly string[]): number[];
  generate(prompt: string | readonly number[], options?: WritingOptions): AsyncGenerator<string>;
  generateIds(prompt: string | readonly number[], options?: WritingOptions): AsyncGenerator<number>;
}
