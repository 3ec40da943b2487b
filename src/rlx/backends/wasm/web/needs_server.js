// For pages that are opened from a disk, from where browsers load no modules: says so in the elements that the tag of this
// script names.
if (location.protocol === "file:") {
  const { title, messages, progress } = document.currentScript.dataset, at = (id) => document.getElementById(id);
  const words = "A server has to give this page to the browser: `rlx serve-web FOLDER`, or any file server.";
  at(title).textContent = "Not loaded";
  at(messages).append(Object.assign(document.createElement("div"), { className: "error", textContent: words }));
  if (progress) at(progress).hidden = true;
}
