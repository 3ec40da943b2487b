// A service worker that keeps the files of the page, so that it loads again without a network, and weights only once.

const KEPT = "rlx";

self.oninstall = (event) => {
  self.skipWaiting();
  // What was loaded before this worker could see it.
  event.waitUntil(caches.open(KEPT).then((cache) => cache.addAll(["./", "./needs_server.js", "./page.js"])));
};
self.onactivate = (event) => event.waitUntil(self.clients.claim());
self.onfetch = (event) => {
  if (event.request.method === "GET") event.respondWith(answer(event.request));
};

async function answer(request) {
  const cache = await caches.open(KEPT), kept = await cache.match(request), { search } = new URL(request.url);
  // Weights come with their checksum, and are asked for anew if it is not theirs; all else may have changed.
  if (kept && search && request.cache !== "reload") return kept;
  try {
    const fresh = await fetch(request);
    if (fresh.ok) await keep(cache, request, fresh.clone(), search);
    return fresh;
  } catch (error) {
    if (kept) return kept;
    throw error;
  }
}

async function keep(cache, request, answer, search) {
  try {
    // Of weights the older ones go.
    if (search) await cache.delete(request, { ignoreSearch: true });
    // Not waited for: the page reads the same bytes meanwhile.
    cache.put(request, answer).catch(() => {});
  } catch {
    // Without room for it the page works all the same.
  }
}
