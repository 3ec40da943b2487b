// Types of rlx.js. `program.d.ts` beside it has what the program of a folder takes and gives.

export type TypedArray =
  | Float64Array | Float32Array | BigInt64Array | BigUint64Array | Int32Array | Uint32Array | Int16Array | Uint16Array
  | Int8Array | Uint8Array;

/** Elements in row-major order. f16 and bf16 are bits in a Uint16Array, bool is bytes, complex numbers are pairs. */
export interface Tensor<A extends TypedArray = TypedArray> {
  readonly data: A;
  readonly shape: readonly number[];
  readonly dtype?: string;
}

/** A tensor in the memory of its program. */
export declare class Resident implements Tensor {
  readonly dtype: string;
  readonly shape: readonly number[];
  /** A view that is lost when memory grows; an error for memory of a GPU. */
  readonly data: TypedArray;
  readonly byteLength: number;
  /** A copy of the elements. */
  read(): Promise<TypedArray>;
  /** Have equal parts of another tensor at the beginnings of as many equal parts of this one. */
  copyParts(other: Resident, count: number): void;
  free(): void;
}

export type Read = (
  name: string, onBytes?: (count: number) => void, version?: string, cache?: "default" | "reload",
) => Promise<Uint8Array>;

export interface LoadOptions {
  /** How files of the folder are read; by default by HTTP, or from disk in node. */
  read?: Read;
  onProgress?: (done: number, total: number) => void;
  /** Threads that run kernels; more than one need a cross-origin isolated page, and a worker to run in. */
  threads?: number;
  /** Run by WebGPU where browser and folder have it. Then `run` gives promises; `note` says why it was not possible. */
  gpu?: boolean;
}

/** `Ran` is what a run gives: outputs, or, where it may be a GPU that runs it, perhaps the promise of them. */
export declare class Program<Inputs = Record<string, TypedArray | Tensor>, Outputs = Tensor[], Ran = Outputs> {
  readonly inputs: readonly { name: string; dtype: string; shape: readonly string[] }[];
  /** Zeros that stay in memory; as an input they are not copied, and an output stored over them is the same object. */
  zeros(dtype: string, shape: readonly number[]): Resident;
  /** The same with given elements. */
  put(dtype: string, shape: readonly number[], data: TypedArray): Resident;
  readonly threads: number;
  readonly device: "wasm" | "webgpu";
  /** Why a GPU was asked for and is not used; empty otherwise. */
  readonly note: string;
  /** By a GPU the promise of outputs, until which inputs must stay as they are; so `await` it after asking for one. */
  run(inputs: Inputs): Ran;
  /** End the helpers of a program with several threads, or let go of the GPU. */
  close(): void;
}

export declare function load<Inputs = Record<string, TypedArray | Tensor>, Outputs = Tensor[]>(
  base?: string | URL, options?: LoadOptions & { gpu?: false },
): Promise<Program<Inputs, Outputs>>;
export declare function load<Inputs = Record<string, TypedArray | Tensor>, Outputs = Tensor[]>(
  base: string | URL | undefined, options: LoadOptions,
): Promise<Program<Inputs, Outputs, Outputs | Promise<Outputs>>>;
/** The typed array of each dtype. */
export declare const ARRAYS: Record<string, new (buffer: ArrayBuffer) => TypedArray>;
export declare function byteLength(dtype: string, shape: readonly number[]): number;
export declare function crc32(bytes: Uint8Array): number;
export declare function reader(base: string | URL): Read;
export declare function readJson(read: Read, name: string): Promise<unknown>;
