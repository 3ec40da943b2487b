// Sizes: what the numbers in the documents of programs are, for the shapes of inputs.

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
export function evaluate(size, binding) {
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
export function bind(document, given) {
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

/** How many iterations a kernel has: `grid` is a straight program on its sizes. */
export function iterations([literals, steps, result], sizes) {
  if (result === null) return 1;
  const registers = [...sizes, ...literals];
  for (const [op, a, b] of steps) registers.push(GRID_OPS[op](registers[a], registers[b]));
  return Math.max(0, registers[result]);
}
