// The playground and the fleet view. What a model or a server says is only ever set as textContent.

import { content, read } from "./attachments.js";
import { thumbnail } from "./pictures.js";
import { TOOLS, run } from "./tools.js";

const $ = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** Yield the data of each server-sent event of a response. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split(/\r?\n\r?\n/);
      rest = blocks.pop();
      for (const block of blocks) {
        const lines = block.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined); // already closed is as good
  }
}

function headers() {
  const key = $("key").value.trim();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

/** What the server says went wrong: OpenAI's error object, else the status line. */
async function problem(response) {
  const body = await response.json().catch(() => ({}));
  return describe(body.error ?? { message: `${response.status} ${response.statusText}` });
}

function describe(error) {
  return error.code ? `${error.message} (${error.code})` : error.message;
}

// Chat

const ROUNDS = 8;
/** Messages of answered turns, calls and their results included; they go with the next question. */
let history = [];
let running = null;
/** Pictures, clips and sounds that go with the next question. */
let pictures = [];
let reading = 0;
let model = "";

function addTurn(role, text) {
  $("blank").hidden = true;
  const turn = $("turn").content.firstElementChild.cloneNode(true);
  turn.classList.add(role);
  turn.querySelector(".who").textContent = role === "user" ? "You" : model || "Model";
  turn.querySelector(".text").textContent = text;
  $("log").append(turn);
  $("log").scrollTop = $("log").scrollHeight;
  return turn;
}

/** Change a turn and keep its end in sight, unless the reader has scrolled away. */
function following(change) {
  const log = $("log");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  change();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function step(turn, template) {
  const node = $(template).content.firstElementChild.cloneNode(true);
  turn.querySelector(".steps").append(node);
  return node;
}

function think(turn, seen, text) {
  seen.thought ??= step(turn, "thought");
  seen.thought.querySelector(".thinking").append(text);
}

/** The thinking is over: say how long it took. */
function thought(seen) {
  if (!seen.thought || seen.thought.dataset.done) return;
  seen.thought.dataset.done = "yes";
  const seconds = (performance.now() - seen.first) / 1000;
  seen.thought.querySelector("summary").textContent = `Thought for ${seconds.toFixed(1)} s`;
}

/** Take a part of a call: its name and id come first, its arguments as they are written. */
function call(turn, seen, delta) {
  const known = (seen.calls[delta.index] ??= { id: "", name: "", arguments: "", card: step(turn, "call") });
  known.id ||= delta.id ?? "";
  known.name ||= delta.function?.name ?? "";
  known.arguments += delta.function?.arguments ?? "";
  known.card.dataset.state = "starting";
  put(known.card, { name: known.name, arguments: known.arguments, state: "calling" });
}

/** Answer the calls of a round. Returns the messages that the model goes on from. */
function answerCalls(turn, seen) {
  const results = seen.calls.map((one) => {
    const result = run(one.name, one.arguments);
    one.card.dataset.state = "ready";
    put(one.card, { state: "answered by this page", result });
    one.card.querySelector(".result").hidden = false;
    return { role: "tool", tool_call_id: one.id, content: result };
  });
  const calls = seen.calls.map(({ id, name, arguments: args }) => {
    return { id, type: "function", function: { name, arguments: args } };
  });
  settle(turn, seen);
  return [{ role: "assistant", content: seen.text || null, tool_calls: calls }, ...results];
}

/** What was said before a call stays above it. */
function settle(turn, seen) {
  const text = turn.querySelector(".text");
  if (text.textContent) {
    const said = document.createElement("div");
    said.className = "said";
    said.textContent = text.textContent;
    seen.calls[0].card.before(said);
  }
  text.textContent = "";
}

function settings() {
  const body = { stream: true, stream_options: { include_usage: true } };
  for (const name of ["temperature", "max_tokens", "seed"]) {
    if ($(name).value !== "") body[name] = Number($(name).value);
  }
  if ($("tools").checked) body.tools = TOOLS;
  return body;
}

async function firstModel() {
  const response = await fetch("v1/models", { headers: headers() });
  if (!response.ok) throw new Error(await problem(response));
  return (await response.json()).data[0]?.id ?? "";
}

/** Stream one answer into `turn`. Returns its text and what is worth knowing about it. */
async function answer(messages, turn, signal) {
  model ||= await firstModel();
  const begun = performance.now();
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers() },
    body: JSON.stringify({ model, messages, ...settings() }),
    signal,
  });
  if (!response.ok) throw new Error(await problem(response));
  const seen = { text: "", calls: [], pieces: 0, tokens: 0, first: 0, last: 0, begun, reason: null };
  for await (const data of events(response)) {
    if (data === "[DONE]") {
      thought(seen);
      return seen;
    }
    take(JSON.parse(data), seen, turn);
  }
  throw new Error("The connection ended before the answer did.");
}

function take(chunk, seen, turn) {
  if (chunk.error) throw new Error(describe(chunk.error));
  if (chunk.usage) seen.tokens = chunk.usage.completion_tokens;
  const choice = chunk.choices?.[0];
  if (choice?.finish_reason) seen.reason = choice.finish_reason;
  const { content, reasoning_content: reasoning, tool_calls: calls } = choice?.delta ?? {};
  if (!content && !reasoning && !calls) return;
  seen.last = performance.now();
  seen.first ||= seen.last;
  seen.pieces += 1;
  following(() => {
    if (reasoning) think(turn, seen, reasoning);
    else thought(seen);
    for (const delta of calls ?? []) call(turn, seen, delta);
    if (!content) return;
    seen.text += content;
    turn.querySelector(".text").append(content);
  });
}

function figures({ tokens, pieces, first, last, begun, reason }) {
  const count = tokens || pieces;
  const parts = [`${number.format(count)} tokens`];
  if (count > 1 && last > first) {
    parts.push(`${((count - 1) / ((last - first) / 1000)).toFixed(1)} tokens/s`);
  }
  if (first) parts.push(`first token after ${Math.round(first - begun)} ms`);
  if (reason === "length") parts.push("cut at the token limit");
  return parts.join(" · ");
}

async function send(text) {
  const draft = { text, pictures };
  const asked = { role: "user", content: content(text, pictures) };
  const shown = addTurn("user", text);
  following(() => {
    shown.querySelector(".pictures").append(...pictures.map((one) => thumbnail(one, SHOWN)));
  });
  setPictures([]);
  const system = $("system").value.trim();
  const before = [...(system ? [{ role: "system", content: system }] : []), ...history, asked];
  const made = [];
  const turn = addTurn("assistant", "");
  turn.classList.add("running");
  running = new AbortController();
  busy(true);
  try {
    let seen = await answer(before, turn, running.signal);
    for (let round = 1; seen.calls.length && round < ROUNDS; round += 1) {
      following(() => made.push(...answerCalls(turn, seen)));
      seen = await answer([...before, ...made], turn, running.signal);
    }
    turn.querySelector(".meta").textContent = figures(seen);
    $("figures").textContent = "";
    remember(asked, made, turn);
  } catch (error) {
    fail(turn, error, asked, made, draft);
  } finally {
    turn.classList.remove("running");
    running = null;
    busy(false);
  }
}

function remember(asked, made, turn) {
  const content = turn.querySelector(".text").textContent;
  if (content) history.push(asked, ...made, { role: "assistant", content });
}

function fail(turn, error, asked, made, draft) {
  const meta = turn.querySelector(".meta");
  if (error.name === "AbortError") {
    meta.textContent = "stopped";
    remember(asked, made, turn);
    return;
  }
  turn.classList.add("failed");
  meta.setAttribute("role", "alert");
  meta.textContent = error instanceof TypeError ? "The server cannot be reached." : error.message;
  if ($("prompt").value || pictures.length) return;
  $("prompt").value = draft.text;
  setPictures(draft.pictures);
}

function busy(state) {
  $("log").setAttribute("aria-busy", String(state));
  $("stop").hidden = !state;
  $("send").hidden = state;
  $("figures").textContent = state ? "answering" : "";
  if (!state) $("prompt").focus();
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("prompt").value.trim();
  if ((!text && !pictures.length) || running || reading) return;
  $("prompt").value = "";
  send(text);
});

$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("composer").requestSubmit();
});

$("stop").addEventListener("click", () => running?.abort());

$("clear").addEventListener("click", () => {
  running?.abort();
  history = [];
  document.querySelectorAll(".log > .turn").forEach((turn) => turn.remove());
  $("blank").hidden = false;
  $("prompt").focus();
});

$("options").addEventListener("click", () => {
  const shown = $("settings").toggleAttribute("hidden") === false;
  $("options").setAttribute("aria-expanded", String(shown));
});

$("ideas").addEventListener("click", (event) => {
  if (event.target instanceof HTMLButtonElement) send(event.target.textContent);
});

// Pictures of the next question

const SHOWN = 640; // pixels of a longer side in the chat
const SMALL = 256; // and in the composer

function setPictures(list) {
  pictures = list;
  following(() => $("tray").replaceChildren(...list.map(attached))); // the composer grows
}

function attached(picture) {
  const item = $("attached").content.firstElementChild.cloneNode(true);
  item.prepend(thumbnail(picture, SMALL));
  const remove = item.querySelector(".remove");
  remove.setAttribute("aria-label", `Remove ${picture.name}`);
  remove.addEventListener("click", () => {
    setPictures(pictures.filter((one) => one !== picture));
    $("prompt").focus();
  });
  return item;
}

/** Take files as pictures, clips and sounds, in their order. What is none is said and left out. */
async function attach(files) {
  reading += 1;
  const taken = await Promise.allSettled([...files].map(read));
  reading -= 1;
  setPictures([...pictures, ...taken.filter((one) => one.value).map((one) => one.value)]);
  const failed = taken.find((one) => one.reason);
  $("figures").textContent = failed ? failed.reason.message : running ? "answering" : "";
  $("prompt").focus();
}

$("file").addEventListener("change", () => {
  attach($("file").files);
  $("file").value = ""; // the same file may be picked again
});

$("prompt").addEventListener("paste", (event) => {
  const { files, types } = event.clipboardData;
  if (!files.length || types.includes("text/plain")) return;
  event.preventDefault();
  attach(files);
});

function draggingFiles(event) {
  const files = event.dataTransfer.types.includes("Files");
  if (files) event.preventDefault();
  return files;
}

document.addEventListener("dragover", (event) => {
  $("composer").classList.toggle("dropping", draggingFiles(event));
});

document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) $("composer").classList.remove("dropping");
});

document.addEventListener("drop", (event) => {
  $("composer").classList.remove("dropping");
  if (draggingFiles(event)) attach(event.dataTransfer.files);
});

// Fleet

const POINTS = 120;
const SILENCE_MS = 5000;
const RETRY_MS = 1000;
const trends = new Map();

/** Append a value to a named series and draw it, newest at the right edge. */
function trend(name, svg, value) {
  const series = [...(trends.get(name) ?? []), value].slice(-POINTS);
  trends.set(name, series);
  const top = Math.max(...series, 1);
  const x = (i) => POINTS - series.length + 1 + i;
  const points = series.map((v, i) => `${x(i)},${(34 - (32 * v) / top).toFixed(2)}`);
  svg.querySelector(".line").setAttribute("d", `M${points.join("L")}`);
  const area = `M${x(0)},36L${points.join("L")}L${x(series.length - 1)},36Z`;
  svg.querySelector(".area").setAttribute("d", area);
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const unit = Math.min(Math.floor(Math.log2(Math.max(count, 1)) / 10), units.length - 1);
  return `${(count / 1024 ** unit).toFixed(unit > 2 ? 1 : 0)} ${units[unit]}`;
}

function duration(seconds) {
  const [h, m, s] = [seconds / 3600, (seconds / 60) % 60, seconds % 60].map(Math.floor);
  if (h >= 48) return `${Math.floor(h / 24)} d ${h % 24} h`;
  return h ? `${h} h ${m} m` : m ? `${m} m ${s} s` : `${s} s`;
}

function speed(tokens) {
  return tokens >= 100 ? number.format(Math.round(tokens)) : tokens.toFixed(1);
}

/** Make `parent` hold one copy of the template per item, reusing the nodes it has. */
function each(parent, template, items, fill) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  while (parent.children.length < items.length) {
    parent.append($(template).content.firstElementChild.cloneNode(true));
  }
  items.forEach((item, i) => fill(parent.children[i], item));
}

function put(node, texts) {
  for (const [name, text] of Object.entries(texts)) node.querySelector(`.${name}`).textContent = text;
}

function fillService(node, service) {
  node.dataset.state = service.state;
  const detail = service.detail || service.name;
  put(node, { name: service.service, detail, state: service.state });
  node.title = `${service.name}: ${service.state}, ${detail}`;
}

function fillWorker(node, worker) {
  const used = worker.pages_total - worker.pages_free;
  const role = worker.role === "both" ? "" : ` · ${worker.role}`;
  const pages = `${number.format(used)} of ${number.format(worker.pages_total)} pages`;
  node.dataset.state = worker.state;
  put(node, {
    name: worker.name,
    detail: `${worker.device} · ${worker.dtype} · ${bytes(worker.weight_bytes)}${role}`,
    state: worker.state,
    used: worker.role === "encode" ? "images only" : pages,
    memory: `cache of ${bytes(worker.kv_bytes)}`,
    running: number.format(worker.running),
    step: `${worker.step_ms.toFixed(1)} ms`,
    speed: speed(worker.tokens_per_second),
  });
  meter(node.querySelector(".pages"), used, worker);
  trend(`worker ${worker.name}`, node.querySelector(".spark"), worker.tokens_per_second);
}

function meter(node, used, worker) {
  node.setAttribute("aria-label", `Pages in use on ${worker.name}`);
  node.setAttribute("aria-valuemax", worker.pages_total);
  node.setAttribute("aria-valuenow", used);
  node.firstElementChild.style.width = `${(100 * used) / Math.max(worker.pages_total, 1)}%`;
}

function show(fleet) {
  model = fleet.model || model;
  const context = fleet.max_model_len ? `, context ${number.format(fleet.max_model_len)}` : "";
  $("model").textContent = model ? model + context : "no model yet";
  $("rate").textContent = speed(fleet.tokens_per_second);
  trend("fleet", $("spark"), fleet.tokens_per_second);
  for (const name of ["running", "waiting", "finished", "preemptions"]) {
    $(name).textContent = number.format(fleet[name]);
  }
  $("tokens").textContent = short.format(fleet.tokens);
  $("uptime").textContent = duration(fleet.uptime);
  each($("services"), "service-row", fleet.services, fillService);
  $("services").classList.toggle("moving", fleet.tokens_per_second > 0);
  showWorkers(fleet.workers);
}

function showWorkers(workers) {
  const box = $("workers");
  box.querySelector(".empty")?.remove();
  each(box, "worker-card", workers, fillWorker);
  if (workers.length) return;
  const empty = document.createElement("p");
  empty.className = "empty";
  empty.textContent = "No worker has joined yet.";
  box.append(empty);
}

function connection(state, text) {
  $("link").dataset.state = state;
  if ($("link").textContent !== text) $("link").textContent = text;
  $("fleet").classList.toggle("stale", state !== "ready");
}

/** Follow the fleet until its stream ends, fails or falls silent. */
async function follow() {
  const silence = new AbortController();
  const listen = () => setTimeout(() => silence.abort(), SILENCE_MS);
  let timer = listen();
  try {
    const response = await fetch("fleet/stream", { headers: headers(), signal: silence.signal });
    if (response.status === 401) return connection("lost", "API key needed: see Settings");
    if (response.status === 403) return connection("lost", "operator's key needed: see Settings");
    if (!response.ok) return connection("lost", "reconnecting");
    for await (const data of events(response)) {
      clearTimeout(timer);
      timer = listen();
      show(JSON.parse(data));
      connection("ready", "live");
    }
    connection("lost", "reconnecting");
  } catch (error) {
    console.info("fleet stream:", error);
    connection("lost", "reconnecting");
  } finally {
    clearTimeout(timer);
  }
}

async function watch() {
  for (;;) {
    await follow();
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

watch();
