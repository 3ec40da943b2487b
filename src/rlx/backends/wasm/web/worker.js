// The model beside the page, so that the page stays awake. Messages in: {load: {gpu}}, {ask: turns | text, ...}, {stop}.
// Messages out: {progress}, {ready}, {piece}, {done}, {error}.

import { LanguageModel } from "./language_model.js";

let model = null, stopper = new AbortController();

async function open({ gpu }) {
  const start = performance.now();
  model = await LanguageModel.load(new URL(".", import.meta.url), {
    onProgress: (done, total) => postMessage({ progress: done / total }),
    // As many as there are cores, up to where a token has too little work for more.
    threads: Math.min(navigator.hardwareConcurrency || 1, 8),
    gpu,
  });
  const { notes: { name, context }, chats, program: { threads, device, note, machine } } = model;
  const seconds = (performance.now() - start) / 1000, gpuName = machine.about ?? "";
  postMessage({ ready: { name, context, chats, threads, device, gpuName, note, seconds } });
}

async function answer({ turns, maxTokens, temperature }) {
  stopper = new AbortController();
  const ids = model.chats ? model.chatIds(turns) : model.tokenizer.encode(turns.join(""));
  if (turns.length > 1 && ids.length >= model.notes.context)
    throw new Error(`this conversation has ${ids.length} tokens, and the context of this model ${model.notes.context}; `
      + "Clear begins another one");
  const decoder = model.tokenizer.decoder(), start = performance.now();
  let count = 0, first = start;
  for await (const id of model.generateIds(ids, { maxTokens, temperature, signal: stopper.signal })) {
    if (++count === 1) first = performance.now();
    postMessage({ piece: decoder.push(id), count, rate: rate(count, first) });
  }
  postMessage({ piece: decoder.flush(), count, rate: rate(count, first) });
  const isStopped = stopper.signal.aborted, isFull = !isStopped && model.tokens.length >= model.notes.context;
  postMessage({ done: { count, firstSeconds: (first - start) / 1000, isStopped, isFull } });
}

/** Tokens a second, after the first one, which waits for the prompt. */
const rate = (count, first) => (count > 1 ? (count - 1) / ((performance.now() - first) / 1000) : null);

onmessage = async ({ data }) => {
  try {
    if (data.load) await open(data.load);
    else if (data.stop) stopper.abort();
    else if (data.ask) await answer(data.ask);
  } catch (error) {
    postMessage({ error: error.message ?? String(error) });
  }
};
