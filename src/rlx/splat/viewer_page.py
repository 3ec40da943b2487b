"""The page of the viewer: HTML, shaders and script in one text, into which `rlx.splat.viewer` puts a scene.

Splats are drawn as quads, far ones first, over which alpha falls like the Gaussian's shadow on the picture. The script
keeps the camera on a ball around the target, and sorts again when the view has turned.
"""

from __future__ import annotations

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>@TITLE@</title>
<style>
html, body { margin: 0; height: 100%; background: rgb(@BACKGROUND@); overflow: hidden; }
canvas { width: 100%; height: 100%; display: block; touch-action: none; cursor: grab; }
p { position: fixed; left: 12px; bottom: 8px; margin: 0; font: 13px system-ui, sans-serif; color: #bbb; }
</style>
</head>
<body>
<canvas id="view" tabindex="0" aria-label="a scene of Gaussian splats"></canvas>
<p id="note">drag to turn, wheel or pinch to come nearer, shift-drag to move, double-click to start again</p>
<script id="scene" type="application/json">@SCENE@</script>
<script>
"use strict";
const VERTEX = `#version 300 es
precision highp float;
precision highp int;
uniform highp sampler2D places;
uniform highp sampler2D bands;
uniform mat3 turn;
uniform vec3 eye;
uniform vec2 focal;
uniform vec2 size;
uniform int coefficients;
in vec2 corner;
in uint which;
out vec2 offset;
out vec4 tint;

vec4 fetched(int texel) {
  int width = textureSize(places, 0).x;
  return texelFetch(places, ivec2(texel % width, texel / width), 0);
}

vec3 band(int texel) {
  int width = textureSize(bands, 0).x;
  vec3 code = texelFetch(bands, ivec2(texel % width, texel / width), 0).rgb * 255.0;
  return ((code + 0.5) / 256.0 - 0.5) * 8.0;
}

vec3 shine(int first, vec3 d) {
  float x = d.x, y = d.y, z = d.z;
  vec3 c = vec3(0.0);
  if (coefficients > 1) {
    c += 0.4886025119 * (-y * band(first) + z * band(first + 1) - x * band(first + 2));
  }
  if (coefficients > 4) {
    c += 1.0925484306 * (x * y * band(first + 3) - y * z * band(first + 4) - x * z * band(first + 6));
    c += 0.3153915653 * (2.0 * z * z - x * x - y * y) * band(first + 5);
    c += 0.5462742153 * (x * x - y * y) * band(first + 7);
  }
  if (coefficients > 9) {
    c += -0.5900435899 * y * (3.0 * x * x - y * y) * band(first + 8);
    c += 2.8906114426 * x * y * z * band(first + 9);
    c += -0.4570457995 * y * (4.0 * z * z - x * x - y * y) * band(first + 10);
    c += 0.3731763326 * z * (2.0 * z * z - 3.0 * x * x - 3.0 * y * y) * band(first + 11);
    c += -0.4570457995 * x * (4.0 * z * z - x * x - y * y) * band(first + 12);
    c += 1.4453057213 * z * (x * x - y * y) * band(first + 13);
    c += -0.5900435899 * x * (x * x - 3.0 * y * y) * band(first + 14);
  }
  return c;
}

void main() {
  int splat = int(which);
  vec4 a = fetched(splat * 4), b = fetched(splat * 4 + 1), c = fetched(splat * 4 + 2);
  vec3 place = turn * (a.xyz - eye);
  gl_Position = vec4(0.0, 0.0, 2.0, 1.0);
  tint = vec4(0.0);
  offset = corner;
  if (place.z < 0.05) return;
  mat3 shape = mat3(b.x, b.y, b.z, b.y, b.w, c.x, b.z, c.x, c.y);
  mat3 seen = turn * shape * transpose(turn);
  float z = place.z;
  vec2 limit = 0.65 * size / focal;
  vec2 flat_ = clamp(place.xy / z, -limit, limit);
  vec3 rx = vec3(focal.x / z, 0.0, -focal.x * flat_.x / z);
  vec3 ry = vec3(0.0, focal.y / z, -focal.y * flat_.y / z);
  float xx = dot(rx, seen * rx) + 0.1, xy = dot(rx, seen * ry), yy = dot(ry, seen * ry) + 0.1;
  float middle = 0.5 * (xx + yy), apart = length(vec2(0.5 * (xx - yy), xy));
  float longest = middle + apart, shortest = max(middle - apart, 0.05);
  vec2 axis = abs(xy) > 1e-6 ? normalize(vec2(xy, longest - xx)) : (xx >= yy ? vec2(1.0, 0.0) : vec2(0.0, 1.0));
  vec2 first = min(sqrt(longest), 1024.0) * axis, second = min(sqrt(shortest), 1024.0) * vec2(-axis.y, axis.x);
  offset = corner * 3.0;
  vec2 pixel = focal * place.xy / z + offset.x * first + offset.y * second;
  gl_Position = vec4(pixel * vec2(2.0, -2.0) / size, 0.0, 1.0);
  vec3 base = fetched(splat * 4 + 3).rgb;
  tint = vec4(max(base + shine(splat * (coefficients - 1), normalize(a.xyz - eye)), 0.0), a.w);
}`;
const FRAGMENT = `#version 300 es
precision highp float;
in vec2 offset;
in vec4 tint;
out vec4 color;
void main() {
  float alpha = tint.a * exp(-0.5 * dot(offset, offset));
  if (alpha < 1.0 / 255.0) discard;
  color = vec4(tint.rgb * alpha, alpha);
}`;

const scene = JSON.parse(document.getElementById("scene").textContent);
const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
const numbers = new Float32Array(bytes(scene.splats).buffer);
const count = scene.count, PER = 13;
const canvas = document.getElementById("view"), note = document.getElementById("note");
const gl = canvas.getContext("webgl2", { antialias: false, alpha: false });

function shader(kind, text) {
  const made = gl.createShader(kind);
  gl.shaderSource(made, text);
  gl.compileShader(made);
  if (!gl.getShaderParameter(made, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(made));
  return made;
}

function texture(unit, texels, internal, format, type, data, per) {
  const width = Math.min(4096, Math.max(texels, 1)), height = Math.max(1, Math.ceil(texels / width));
  const filled = new data.constructor(width * height * per);
  filled.set(data);
  gl.activeTexture(gl.TEXTURE0 + unit);
  gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
  gl.pixelStorei(gl.UNPACK_ALIGNMENT, 1);
  gl.texImage2D(gl.TEXTURE_2D, 0, internal, width, height, 0, format, type, filled);
  for (const side of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(gl.TEXTURE_2D, side, gl.NEAREST);
}

// Sixteen numbers per splat on the card: place, opacity; the covariance; the colour.
function laidOut() {
  const all = new Float32Array(count * 16);
  for (let i = 0; i < count; i++) {
    const from = i * PER, to = i * 16;
    for (let j = 0; j < 4; j++) all[to + j] = numbers[from + j];
    for (let j = 0; j < 6; j++) all[to + 4 + j] = numbers[from + 4 + j];
    for (let j = 0; j < 3; j++) all[to + 12 + j] = numbers[from + 10 + j];
  }
  return all;
}

const cross = (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
const scaled = (a, s) => a.map(v => v * s);
const plus = (a, b) => a.map((v, i) => v + b[i]);
const unit = a => scaled(a, 1 / Math.max(Math.hypot(...a), 1e-12));

const up = unit(scene.up);
let target, distance, around, rise;
const side = unit(Math.abs(up[0]) < 0.9 ? cross(up, [1, 0, 0]) : cross(up, [0, 1, 0])), front = cross(side, up);

function startAgain() {
  target = scene.target.slice();
  const arm = plus(scene.eye, scaled(target, -1));
  distance = Math.max(Math.hypot(...arm), 1e-3);
  const d = unit(arm);
  rise = Math.asin(Math.max(-1, Math.min(1, dot(d, up))));
  around = Math.atan2(dot(d, side), dot(d, front));
}

function view() {
  const level = plus(scaled(side, Math.sin(around)), scaled(front, Math.cos(around)));
  const away = plus(scaled(level, Math.cos(rise)), scaled(up, Math.sin(rise)));
  const eye = plus(target, scaled(away, distance)), ahead = scaled(away, -1);
  const right = unit(cross(ahead, up)), down = cross(ahead, right);
  return { eye, right, down, ahead };
}

let sortedFor = null;
const keys = new Uint32Array(count), order = new Uint32Array(count), starts = new Uint32Array(65537);
const depths = new Float32Array(count);
function sortFarFirst(v) {
  if (sortedFor && dot(sortedFor.ahead, v.ahead) > 0.9999 &&
      Math.hypot(...plus(sortedFor.eye, scaled(v.eye, -1))) < 0.002 * distance) return false;
  sortedFor = v;
  let low = Infinity, high = -Infinity;
  for (let i = 0; i < count; i++) {
    const at = i * PER;
    const x = numbers[at] - v.eye[0], y = numbers[at + 1] - v.eye[1], z = numbers[at + 2] - v.eye[2];
    const d = Math.sqrt(x * x + y * y + z * z);
    depths[i] = d;
    if (d < low) low = d;
    if (d > high) high = d;
  }
  const scale = 65535 / Math.max(high - low, 1e-9);
  starts.fill(0);
  for (let i = 0; i < count; i++) starts[(keys[i] = 65535 - ((depths[i] - low) * scale | 0)) + 1]++;
  for (let i = 0; i < 65536; i++) starts[i + 1] += starts[i];
  for (let i = 0; i < count; i++) order[starts[keys[i]]++] = i;
  return true;
}

let asked = false;
function ask() {
  if (!asked) { asked = true; requestAnimationFrame(draw); }
}

let program, indices;
function prepare() {
  program = gl.createProgram();
  gl.attachShader(program, shader(gl.VERTEX_SHADER, VERTEX));
  gl.attachShader(program, shader(gl.FRAGMENT_SHADER, FRAGMENT));
  gl.linkProgram(program);
  if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(program));
  gl.useProgram(program);
  texture(0, count * 4, gl.RGBA32F, gl.RGBA, gl.FLOAT, laidOut(), 4);
  texture(1, count * (scene.coefficients - 1), gl.RGB8, gl.RGB, gl.UNSIGNED_BYTE, bytes(scene.bands), 3);
  gl.uniform1i(gl.getUniformLocation(program, "places"), 0);
  gl.uniform1i(gl.getUniformLocation(program, "bands"), 1);
  gl.uniform1i(gl.getUniformLocation(program, "coefficients"), scene.coefficients);
  const corner = gl.getAttribLocation(program, "corner"), which = gl.getAttribLocation(program, "which");
  gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer());
  gl.bufferData(gl.ARRAY_BUFFER, new Float32Array([-1, -1, 1, -1, -1, 1, 1, 1]), gl.STATIC_DRAW);
  gl.enableVertexAttribArray(corner);
  gl.vertexAttribPointer(corner, 2, gl.FLOAT, false, 0, 0);
  indices = gl.createBuffer();
  gl.bindBuffer(gl.ARRAY_BUFFER, indices);
  gl.bufferData(gl.ARRAY_BUFFER, order.byteLength, gl.DYNAMIC_DRAW);
  gl.enableVertexAttribArray(which);
  gl.vertexAttribIPointer(which, 1, gl.UNSIGNED_INT, 0, 0);
  gl.vertexAttribDivisor(which, 1);
  gl.enable(gl.BLEND);
  gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
  gl.clearColor(...scene.background, 1);
}

function draw() {
  asked = false;
  const density = Math.min(window.devicePixelRatio || 1, 2);
  canvas.width = Math.max(1, Math.round(canvas.clientWidth * density));
  canvas.height = Math.max(1, Math.round(canvas.clientHeight * density));
  gl.viewport(0, 0, canvas.width, canvas.height);
  const v = view(), focal = 0.5 * canvas.height / Math.tan(scene.fov * Math.PI / 360);
  const at = name => gl.getUniformLocation(program, name);
  // Columns of the matrix whose rows are right, down and ahead.
  gl.uniformMatrix3fv(at("turn"), false, [0, 1, 2].flatMap(i => [v.right[i], v.down[i], v.ahead[i]]));
  gl.uniform3fv(at("eye"), v.eye);
  gl.uniform2f(at("focal"), focal, focal);
  gl.uniform2f(at("size"), canvas.width, canvas.height);
  if (sortFarFirst(v)) {
    gl.bindBuffer(gl.ARRAY_BUFFER, indices);
    gl.bufferSubData(gl.ARRAY_BUFFER, 0, order);
  }
  gl.clear(gl.COLOR_BUFFER_BIT);
  gl.drawArraysInstanced(gl.TRIANGLE_STRIP, 0, 4, count);
}

const fingers = new Map();
let gap = 0;
canvas.addEventListener("pointerdown", e => {
  canvas.setPointerCapture(e.pointerId);
  fingers.set(e.pointerId, e);
  gap = 0;
});
for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, e => fingers.delete(e.pointerId));
canvas.addEventListener("pointermove", e => {
  const before = fingers.get(e.pointerId);
  if (!before) return;
  const dx = e.clientX - before.clientX, dy = e.clientY - before.clientY;
  fingers.set(e.pointerId, e);
  if (fingers.size === 2) {
    const [a, b] = [...fingers.values()], wide = Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
    if (gap) distance *= gap / Math.max(wide, 1);
    gap = wide;
  } else if (e.shiftKey || e.buttons === 2) {
    const v = view(), step = distance / canvas.clientHeight;
    target = plus(target, plus(scaled(v.right, -dx * step), scaled(v.down, -dy * step)));
  } else {
    around -= dx * 0.006;
    rise = Math.max(-1.55, Math.min(1.55, rise + dy * 0.006));
  }
  ask();
});
canvas.addEventListener("contextmenu", e => e.preventDefault());
canvas.addEventListener("dblclick", () => { startAgain(); ask(); });
canvas.addEventListener("wheel", e => {
  e.preventDefault();
  distance *= Math.exp(Math.max(-1, Math.min(1, e.deltaY * 0.001)));
  ask();
}, { passive: false });
canvas.addEventListener("keydown", e => {
  const turns = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] }[e.key];
  if (!turns) return;
  e.preventDefault();
  around += turns[0];
  rise = Math.max(-1.55, Math.min(1.55, rise + turns[1]));
  ask();
});
window.addEventListener("resize", ask);

if (!gl) {
  note.textContent = "this browser has no WebGL 2, which the viewer needs";
} else {
  try {
    startAgain();
    prepare();
    ask();
  } catch (problem) {
    note.textContent = "the viewer could not start: " + problem.message;
  }
}
</script>
</body>
</html>
"""
