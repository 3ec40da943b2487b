// Tensors from and to the numbers that people write: what the page of a program does with its text. Programs themselves
// take and give typed arrays, where f16 and bf16 are bits.

import { ARRAYS, byteLength } from "./rlx.js";

const word = new DataView(new ArrayBuffer(4));
const HALVES = { f16: [toF16, fromF16], bf16: [toBf16, fromBf16] };

// Elements that one number stands for, at most; and whole numbers that JavaScript's numbers may not hold.
const MOST = 2 ** 26, STRING_OR_NUMBER = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g, LONG = /^-?\d{16,}$/;

/** A value of JSON whose long whole numbers are strings, so that none of their digits is lost. */
export function parsed(text) {
  return JSON.parse(text.replace(STRING_OR_NUMBER, (found) => (LONG.test(found) ? `"${found}"` : found)));
}

/** The tensor that a value of JSON is for an input: {data, shape} or data alone, which is a list, lists in lists, or one
 *  number for all elements. Parts of complex numbers follow each other. */
export function tensorOf({ name, dtype, shape: declared }, value) {
  const isWhole = typeof value === "object" && !Array.isArray(value) && value !== null && "data" in value;
  const { data, shape } = isWhole ? value : { data: value };
  const isList = Array.isArray(data), kind = ARRAYS[dtype], bytes = kind.BYTES_PER_ELEMENT;
  const known = declared.every((size) => !isNaN(size)) ? declared.map(Number) : undefined;
  const dims = shape ?? (isList && Array.isArray(data[0]) ? nesting(data, dtype) : isList ? undefined : known);
  if (!isList && !dims) throw new Error(`input ${name}: one number for all elements needs a shape: {"data": 0, "shape": […]}`);
  const count = isList ? 0 : byteLength(dtype, dims) / bytes;
  if (!(count >= 0 && count <= MOST)) throw new Error(`input ${name}: the shape [${dims}] is none, or has more than ${MOST} elements`);
  const numbers = isList ? data.flat(Infinity) : Array(count).fill(data);
  const found = numbers.map((number) => elementOf(name, dtype, number));
  const typed = kind.from(found);
  return dims ? { data: typed, shape: dims } : typed;
}

/** The elements of a tensor as text. */
export function numbersOf({ dtype, data }) {
  const [, from] = HALVES[dtype] ?? [];
  return Array.from(data, from ? (bits) => from(bits) : (number) => number);
}

function elementOf(name, dtype, given) {
  const isNamed = ["NaN", "Infinity", "-Infinity"].includes(given) || LONG.test(given), number = Number(given);
  if (!isNamed && typeof given !== "number" && typeof given !== "boolean")
    throw new Error(`input ${name}: ${JSON.stringify(given)} is no number`);
  if (HALVES[dtype]) return HALVES[dtype][0](number);
  if (/^[fc]/.test(dtype)) return number;
  if (!Number.isInteger(number)) throw new Error(`input ${name}: ${given} is no whole number, which ${dtype} needs`);
  const whole = /^[iu]64$/.test(dtype) ? BigInt(given) : number;
  const fits = dtype === "bool" ? number === 0 || number === 1 : ARRAYS[dtype].of(whole)[0] === whole;
  if (!fits) throw new Error(`input ${name}: ${given} does not fit into ${dtype}`);
  return whole;
}

/** The shape of lists in lists; where one is shorter than others, elements are missing, which a run says. */
function nesting(data, dtype) {
  const dims = [];
  for (let inner = data; Array.isArray(inner); inner = inner[0]) dims.push(inner.length);
  return dtype[0] === "c" ? dims.slice(0, -1) : dims;
}

function toF16(value) {
  if (Number.isNaN(value)) return 0x7e00;
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0, size = Math.abs(value);
  word.setFloat32(0, size);
  const exponent = Math.max((word.getUint32(0) >>> 23) - 127, -14);
  // The first bit of a mantissa carries into the exponent, as rounding up may do, too.
  const bits = exponent > 15 ? 0x7c00 : ((exponent + 14) << 10) + toEven(size / 2 ** (exponent - 10));
  return sign | Math.min(bits, 0x7c00);
}

function fromF16(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  if (exponent === 31) return mantissa ? NaN : sign * Infinity;
  return sign * (exponent ? (1 + mantissa / 1024) * 2 ** (exponent - 15) : mantissa * 2 ** -24);
}

function toBf16(value) {
  if (Number.isNaN(value)) return 0x7fc0;
  word.setFloat32(0, value);
  const bits = word.getUint32(0);
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
}

function fromBf16(bits) {
  word.setUint32(0, bits * 65536);
  return word.getFloat32(0);
}

function toEven(value) {
  const rounded = Math.round(value);
  return rounded - value === 0.5 && rounded % 2 ? rounded - 1 : rounded;
}
