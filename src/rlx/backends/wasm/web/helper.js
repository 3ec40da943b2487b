// A thread of a program: see threads.js.

import { help } from "./threads.js";

async function begin({ module, memory, control, stack }) {
  const { exports } = await WebAssembly.instantiate(module, { env: { memory } });
  // Every thread has a stack of its own.
  exports.stack.value = stack;
  const names = Object.keys(exports).filter((name) => name.startsWith("k"));
  help(control, names.map((_, i) => exports[`k${i}`]));
}

if (typeof WorkerGlobalScope !== "undefined") self.onmessage = ({ data }) => begin(data);
else (await import("node:worker_threads")).parentPort.once("message", begin);
