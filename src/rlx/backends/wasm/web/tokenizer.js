// Text to token ids and back, by the rules in `model.json` (rlx.models.page_tokenizer writes them).
//
//   const tokenizer = new Tokenizer(notes.tokenizer);
//   const ids = tokenizer.encode("Hello"), stream = tokenizer.decoder();
//   ids.map((id) => stream.push(id)).join("") + stream.flush();

const GPT2 = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;
const SPACE = /\p{White_Space}/u;
const SPELLED = /^<0x([0-9A-Fa-f]{2})>$/;

// Bytes as printable characters, as byte-level vocabularies write them.
const CHAR_OF_BYTE = new Array(256), BYTE_OF_CHAR = new Map();
for (let byte = 0, next = 256; byte < 256; byte++) {
  const isPlain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  CHAR_OF_BYTE[byte] = String.fromCodePoint(isPlain ? byte : next++);
  BYTE_OF_CHAR.set(CHAR_OF_BYTE[byte], byte);
}
const utf8 = new TextEncoder();
const asBytes = (text) => Array.from(utf8.encode(text), (byte) => CHAR_OF_BYTE[byte]).join("");

export class Tokenizer {
  constructor(rules) {
    this.rules = rules;
    this.ids = new Map(rules.vocab.map((token, id) => [token, id]));
    this.special = new Set(rules.added.filter(([, isSpecial]) => isSpecial).map(([id]) => id));
    this.added = new Map(rules.added.map(([id, , left, right]) => [rules.vocab[id], { id, left, right }]));
    const names = [...this.added.keys()].filter(Boolean).sort((a, b) => b.length - a.length);
    this.addedPattern = names.length ? new RegExp(names.map(escaped).join("|"), "gu") : null;
    this.words = rules.words.map((rule) => wordRule(rule));
    this.cache = new Map();
    if (rules.model.type === "bpe") this.#readMerges(rules.model.merges);
  }

  #readMerges(merges) {
    // Left and right token -> [rank, the token that they become].
    this.merges = new Map();
    for (let i = 0; i < merges.length; i += 2) {
      const key = merges[i] * 4294967296 + merges[i + 1];
      const joined = this.ids.get(this.rules.vocab[merges[i]] + this.rules.vocab[merges[i + 1]]);
      if (!this.merges.has(key)) this.merges.set(key, [i / 2, joined]);
    }
  }

  /** The ids of a text, with what the model wants around it unless `addSpecial` is false. */
  encode(text, addSpecial = true) {
    const ids = [];
    let isFirst = true;
    // Lone surrogates are no characters.
    for (const piece of this.#cutAdded(text.replace(/[\ud800-\udfff]/gu, "\ufffd"))) {
      if (typeof piece === "number") ids.push(piece);
      else if (piece) ids.push(...this.#encodePlain(piece, isFirst));
      isFirst = false;
    }
    return addSpecial ? [...this.rules.before, ...ids, ...this.rules.after] : ids;
  }

  /** Texts, and the ids of added tokens between them. */
  *#cutAdded(text) {
    if (!this.addedPattern) return yield text;
    let at = 0;
    for (const match of text.matchAll(this.addedPattern)) {
      const { id, left, right } = this.added.get(match[0]);
      let before = text.slice(at, match.index);
      at = match.index + match[0].length;
      if (left) before = before.trimEnd();
      if (right) while (at < text.length && SPACE.test(text[at])) at++;
      if (before) yield before;
      yield id;
    }
    if (at < text.length) yield text.slice(at);
  }

  #encodePlain(text, isFirst) {
    for (const [kind, ...options] of this.rules.normalizers) text = NORMALIZERS[kind](text, ...options);
    let words = [text];
    for (const rule of this.words) words = words.flatMap((word, i) => rule(word, isFirst && i === 0));
    return words.flatMap((word) => this.#word(word));
  }

  #word(word) {
    let ids = this.cache.get(word);
    if (!ids) {
      ids = this.rules.model.type === "bpe" ? this.#merged(word) : this.#pieces(word);
      if (this.cache.size > 20000) this.cache.clear();
      this.cache.set(word, ids);
    }
    return ids;
  }

  /** Byte-pair encoding: the pair with the lowest rank first, the leftmost of those. */
  #merged(word) {
    const { wholeWords } = this.rules.model;
    if (wholeWords && this.ids.has(word)) return [this.ids.get(word)];
    const ids = this.#characters(word);
    for (;;) {
      let best = null, at = -1;
      for (let i = 0; i + 1 < ids.length; i++) {
        const found = this.merges.get(ids[i] * 4294967296 + ids[i + 1]);
        if (found && (!best || found[0] < best[0])) [best, at] = [found, i];
      }
      if (!best) return ids;
      ids.splice(at, 2, best[1]);
    }
  }

  #characters(word) {
    const { unknown, fuses, spells } = this.rules.model, ids = [];
    let wasUnknown = false;
    for (const char of word) {
      const id = this.ids.get(char);
      const bytes = id === undefined && spells ? Array.from(utf8.encode(char), (b) => this.ids.get(hex(b))) : [];
      if (id !== undefined) ids.push(id);
      else if (bytes.length && !bytes.includes(undefined)) ids.push(...bytes);
      else {
        if (unknown !== undefined && unknown !== null && !(fuses && wasUnknown)) ids.push(unknown);
        wasUnknown = true;
        continue;
      }
      wasUnknown = false;
    }
    return ids;
  }

  /** WordPiece: the longest match from the left. */
  #pieces(word) {
    const { unknown, prefix, longest } = this.rules.model, chars = Array.from(word), ids = [];
    if (chars.length > longest) return [unknown];
    for (let start = 0; start < chars.length; ) {
      let end = chars.length, id;
      for (; end > start; end--) {
        id = this.ids.get((start ? prefix : "") + chars.slice(start, end).join(""));
        if (id !== undefined) break;
      }
      if (id === undefined) return [unknown];
      ids.push(id);
      start = end;
    }
    return ids;
  }

  decode(ids) {
    const stream = this.decoder();
    return ids.map((id) => stream.push(id)).join("") + stream.flush();
  }

  /** Takes ids one by one; gives whole characters. Special tokens have no text. */
  decoder() {
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true }), steps = this.rules.decoders;
    const strip = steps.find(([kind]) => kind === "strip"), metaspace = steps.find(([kind]) => kind === "metaspace");
    let toStrip = strip ? strip[2] : metaspace && metaspace[2] !== "never" ? 1 : 0;
    const shown = (text) => {
      while (toStrip > 0 && text.startsWith(strip ? strip[1] : " ")) [text, toStrip] = [text.slice(1), toStrip - 1];
      if (text) toStrip = 0;
      return text;
    };
    return {
      push: (id) => (this.special.has(id) ? "" : shown(decoder.decode(this.#bytes(this.rules.vocab[id] ?? ""), { stream: true }))),
      flush: () => shown(decoder.decode()),
    };
  }

  #bytes(token) {
    for (const [kind, ...options] of this.rules.decoders) {
      if (kind === "bytes") {
        const bytes = Array.from(token, (char) => BYTE_OF_CHAR.get(char));
        return bytes.includes(undefined) ? utf8.encode(token) : Uint8Array.from(bytes);
      }
      if (kind === "replace") token = token.replaceAll(options[0], options[1]);
      if (kind === "metaspace") token = token.replaceAll(options[0], " ");
      if (kind === "spelled" && SPELLED.test(token)) return Uint8Array.of(parseInt(token.slice(3, 5), 16));
    }
    return utf8.encode(token);
  }
}

const hex = (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;
const escaped = (text) => text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");

const NORMALIZERS = {
  unicode: (text, form) => text.normalize(form),
  lowercase: (text) => text.toLowerCase(),
  prepend: (text, before) => (text ? before + text : text),
  replace: (text, from, to) => text.replaceAll(from, to),
  bert: (text, cleans, spacesChinese, stripsAccents, lowers) => {
    if (cleans) text = text.replace(/[\t\n\r]|\p{White_Space}/gu, " ").replace(/[\0\ufffd]|[\p{Cc}\p{Cf}\p{Co}]/gu, "");
    if (spacesChinese) text = text.replace(/[\u4e00-\u9fff\u3400-\u4dbf\u{20000}-\u{2a6df}\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b920}-\u{2ceaf}\uf900-\ufaff\u{2f800}-\u{2fa1f}]/gu, " $& ");
    if (stripsAccents) text = text.normalize("NFD").replace(/\p{Mn}/gu, "");
    return lowers ? text.toLowerCase() : text;
  },
};

/** A function that cuts a piece of text into words. */
function wordRule([kind, ...options]) {
  if (kind === "bytes") {
    const [usesWords, addsSpace] = options;
    return (text) => {
      const spaced = addsSpace && !SPACE.test(text[0] ?? " ") ? ` ${text}` : text;
      return (usesWords ? cut(spaced, GPT2, true) : [spaced]).map(asBytes);
    };
  }
  if (kind === "split") {
    const [pattern, behavior, inverts] = options, found = new RegExp(pattern, "gu");
    return (text) => cut(text, found, behavior === "isolated", inverts);
  }
  if (kind === "metaspace") {
    const [mark, scheme, splits] = options;
    return (text, isFirst) => {
      let marked = text.replaceAll(" ", mark);
      if ((scheme === "always" || (scheme === "first" && isFirst)) && !marked.startsWith(mark)) marked = mark + marked;
      return splits ? marked.split(new RegExp(`(?=${escaped(mark)})`, "u")).filter(Boolean) : [marked];
    };
  }
  const signs = /[!-/:-@[-`{-~]|\p{P}/gu;
  return (text) => text.split(/\p{White_Space}+/u).filter(Boolean).flatMap((word) => cut(word, signs, true));
}

/** What a pattern matches and what lies between; matches are left out unless `keeps`, or all else if `inverts`. */
function cut(text, pattern, keeps, inverts = false) {
  const pieces = [];
  let at = 0;
  const add = (piece, isMatch) => {
    if (piece && (keeps || isMatch === inverts)) pieces.push(piece);
  };
  for (const match of text.matchAll(pattern)) {
    add(text.slice(at, match.index), false);
    add(match[0], true);
    at = match.index + match[0].length;
  }
  add(text.slice(at), false);
  return pieces;
}
