// The page: shows what the worker says.

const at = (id) => document.getElementById(id);
await keepOffline();
const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
let turns = [], answer = null, chats = false, isBusy = false;

function bubble(kind, text) {
  const box = document.createElement("div");
  box.className = kind;
  box.textContent = text;
  at("talk").append(box);
  box.scrollIntoView({ block: "end" });
  return box;
}

/** Whether the end of the talk is in sight: whoever reads what was before is left there. */
const atEnd = ({ scrollHeight, scrollTop, clientHeight } = at("talk")) => scrollHeight - scrollTop - clientHeight < 50;
let follows = true;
at("talk").onscroll = () => (follows = atEnd());
// A keyboard on the screen takes half of it.
new ResizeObserver(() => follows && at("talk").scrollTo(0, at("talk").scrollHeight)).observe(at("talk"));

function busy(value) {
  isBusy = value;
  at("send").hidden = value;
  at("stop").hidden = !value;
  at("text").disabled = value;
  if (!value) at("text").focus();
}

function ask(text) {
  if (!text.trim() || isBusy) return;
  if (!chats) turns = [];
  turns.push(chats ? text.trim() : text);
  bubble("user", text);
  answer = bubble("model", "");
  at("text").value = "";
  busy(true);
  const maxTokens = Math.max(1, Number(at("tokens").value) || 128);
  worker.postMessage({ ask: { turns, maxTokens, temperature: Number(at("temperature").value) || 0 } });
}

const HANDLERS = {
  progress: (part) => (at("bar").value = part),
  ready: ({ name, context, chats: hasTemplate, threads, device, gpuName, note, seconds }) => {
    chats = hasTemplate;
    at("title").textContent = document.title = name;
    const how = chats ? "chat" : "continues your text", many = threads === 1 ? "1 thread" : `${threads} threads`;
    const where = device === "webgpu" ? `WebGPU${gpuName && ` (${gpuName})`}` : many;
    at("about").textContent = `ready in ${seconds.toFixed(1)} s · ${context} tokens of context · ${where} · ${how}`;
    at("note").textContent = note && `${note}; WebAssembly computes instead`;
    at("text").placeholder = chats ? "Ask something" : "Begin a text";
    at("loading").hidden = true;
    at("send").disabled = false;
    busy(false);
  },
  piece: (piece, { count, rate }) => {
    const wasAtEnd = atEnd();
    answer.append(piece);
    at("rate").textContent = rate ? `${count} tokens · ${rate.toFixed(1)} tokens/s` : `${count} tokens`;
    if (wasAtEnd) answer.scrollIntoView({ block: "end" });
  },
  done: ({ isFull }) => {
    if (isFull) at("rate").textContent += " · the context is full";
    turns.push(answer.textContent);
    busy(false);
  },
  error: (message) => {
    at("loading").hidden = true;
    bubble("error", message);
    // An answer that failed is no turn.
    if (turns.length % 2) turns.pop();
    if (at("about").textContent) busy(false);
    else at("title").textContent = "Not loaded";
  },
};

worker.onmessage = ({ data }) => {
  for (const [kind, value] of Object.entries(data)) HANDLERS[kind]?.(value, data);
};
worker.onerror = (event) => HANDLERS.error(event.message || "the worker could not be started");
at("form").onsubmit = (event) => {
  event.preventDefault();
  ask(at("text").value);
};
at("text").onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ask(at("text").value);
};
at("stop").onclick = () => worker.postMessage({ stop: true });
at("clear").onclick = () => {
  if (isBusy) return;
  turns = [];
  at("talk").replaceChildren();
};
// By `?device=wasm` in its address a page does not look for a GPU.
worker.postMessage({ load: { gpu: new URLSearchParams(location.search).get("device") !== "wasm" } });

/** Have files kept, where the browser allows it; the page does not depend on it. */
async function keepOffline() {
  const { serviceWorker } = navigator;
  if (!serviceWorker) return;
  try {
    await serviceWorker.register(new URL("./offline.js", import.meta.url));
    if (!serviceWorker.controller) {
      const seconds = (resolve) => setTimeout(resolve, 3000);
      await Promise.race([new Promise((resolve) => (serviceWorker.oncontrollerchange = resolve)), new Promise(seconds)]);
    }
  } catch {
    // A browser that forbids it, as some do in private windows.
  }
}
