// The page's script: numbers from one stream of events, frames while somebody watches, and an env to try over /ws.

const $ = (id) => document.getElementById(id);
const page = $("page");
const several = Number(page.dataset.processes) > 1;

// ------------------------------------------------------------------------------------------------ how numbers look

const whole = (value) => Math.round(value).toLocaleString("en-US");

function rate(value) {
  return value > 0 && value < 10 ? value.toFixed(1) : whole(value);
}

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${(value * 1e3).toPrecision(value < 0.1 ? 2 : 3)} ms`;
  return `${value.toPrecision(3)} s`;
}

function duration(value) {
  if (value < 60) return `${Math.floor(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min`;
  return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
}

function bytes(value) {
  if (value === null) return "–";
  for (const unit of ["B", "kB", "MB"]) {
    if (value < 1000) return `${value < 10 && unit !== "B" ? value.toFixed(1) : Math.round(value)} ${unit}`;
    value /= 1000;
  }
  return `${value.toFixed(1)} GB`;
}

// ------------------------------------------------------------------------------------------------------ the numbers

const history = [];

function show(now) {
  const texts = {
    steps_per_s: rate(now.steps_per_s), steps: whole(now.steps), p50: seconds(now.p50), p95: seconds(now.p95),
    p99: seconds(now.p99), envs: whole(now.envs), max_envs: whole(now.max_envs), sessions: whole(now.sessions),
    waiting: whole(now.sessions - now.connected), running: whole(now.running), workers: whole(now.workers),
    queued: whole(now.queued), memory: bytes(now.memory_bytes), cpu: `${Math.round(now.cpu * 100)} %`,
    sent: bytes(now.sent_per_s), received: bytes(now.received_per_s), lost: whole(now.lost),
    disconnected: whole(now.disconnected), resumed: whole(now.resumed),
  };
  for (const [id, text] of Object.entries(texts)) $(id).textContent = text;
  if (several) {
    const some = now.answering < now.processes ? `${now.answering} of ${now.processes} processes answer` : "";
    $("processes").textContent = some || `in ${now.processes} processes`;
  }
  const codes = Object.entries(now.errors).sort((a, b) => b[1] - a[1]);
  $("errors").textContent = whole(codes.reduce((sum, [, count]) => sum + count, 0));
  $("codes").textContent = codes.map(([code, count]) => `${code} ${whole(count)}`).join(", ") || "none";
  const meter = $("envs-meter");
  meter.max = now.max_envs;
  meter.value = now.envs;
  history.push(now.steps_per_s);
  if (history.length > 60) history.shift();
  spark(history);
  bars(now.step_buckets);
  parts(now.parts);
  rows(now.list, now.sessions);
}

function parts(times) {
  const svg = $("parts");
  if (times === null) {
    $("mean").textContent = "–";
    return;
  }
  const total = Object.values(times).reduce((sum, time) => sum + time, 0);
  const legend = [];
  svg.replaceChildren();
  let from = 0;
  for (const [name, time] of Object.entries(times)) {
    const share = time / total;
    const bar = svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "rect"));
    bar.setAttribute("class", `part-${name}`);
    for (const [key, value] of Object.entries({ x: from * 120, y: 0, width: share * 120, height: 8 })) {
      bar.setAttribute(key, value);
    }
    from += share;
    const entry = document.createElement("span");
    entry.className = `part part-${name}`;
    entry.appendChild(document.createElement("b")).textContent = `${name} ${Math.round(share * 100)} %`;
    legend.push(entry);
  }
  $("mean").textContent = `${seconds(total)} on average`;
  $("legend").replaceChildren(...legend);
}

function spark(values) {
  const top = Math.max(...values, 1);
  const points = values.map((value, i) => `${120 - (values.length - 1 - i) * 2},${31 - (value / top) * 30}`);
  document.querySelector("#spark polyline").setAttribute("points", points.join(" "));
}

function bars(buckets) {
  const svg = $("bars");
  const top = Math.max(...buckets, 1);
  const width = 120 / buckets.length;
  buckets.forEach((count, i) => {
    const bar = svg.children[i] ?? svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "rect"));
    const height = count ? Math.max((count / top) * 31, 1) : 0.4;
    for (const [name, value] of Object.entries({ x: i * width + 0.5, y: 32 - height, width: width - 1, height })) {
      bar.setAttribute(name, value);
    }
  });
}

const LABELS = ["Session", "State", ...(several ? ["Process"] : []), "Envs", "Steps/s", "Median", "99 %", "Steps",
  "Errors", "Open for", ""];
const short = ({ name }) => name.split(".").pop().slice(0, 8); // a process and its life may stand before it

function rows(sessions, count) {
  const body = $("rows");
  const known = new Map([...body.querySelectorAll("tr[data-name]")].map((row) => [row.dataset.name, row]));
  const shown = sessions.map((session) => {
    const row = known.get(session.name) ?? newRow(session);
    const state = session.connected ? (session.steps_per_s > 0 || session.running ? "active" : "idle") : "cut";
    const texts = [short(session), null, ...(several ? [session.process] : []), session.envs,
      rate(session.steps_per_s), seconds(session.p50), seconds(session.p99), whole(session.steps), whole(session.errors), duration(session.age_s), null];
    texts.forEach((text, i) => { if (text !== null) row.cells[i].lastChild.textContent = text; });
    row.querySelector(".state").className = `state ${{ active: "live", idle: "resting", cut: "broken" }[state]}`;
    row.querySelector(".state-text").textContent = { active: "active", idle: "idle", cut: "no connection" }[state];
    return row;
  });
  if (!shown.length) {
    const empty = document.createElement("tr");
    const cell = empty.appendChild(document.createElement("td"));
    cell.colSpan = LABELS.length;
    cell.className = "quiet";
    cell.textContent = "No sessions now. A client opens one with RemoteVecEnv(…) or gym.make(…).";
    shown.push(empty);
  }
  // Rows keep their place as long as they live, so that a focused button isn't moved away.
  const kept = [...body.children].filter((row) => shown.includes(row));
  body.replaceChildren(...kept, ...shown.filter((row) => !kept.includes(row)));
  $("more").hidden = count <= sessions.length;
  $("more").textContent = `and ${count - sessions.length} more sessions`;
  $("no-frames").hidden = page.dataset.renders !== "yes" || !sessions.length || sessions.some((session) => session.renders);
}

function newRow(session) {
  const row = document.createElement("tr");
  row.dataset.name = session.name;
  for (const label of LABELS) {
    const cell = row.insertCell();
    if (label) cell.dataset.label = label;
    cell.append(document.createElement("span"));
  }
  const state = row.cells[1].lastChild;
  state.className = "state";
  state.innerHTML = '<span class="dot"></span><span class="state-text"></span>';
  if (session.renders) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Watch";
    button.setAttribute("aria-label", `Watch frames of session ${short(session)}`);
    button.addEventListener("click", () => watch(session));
    row.cells[LABELS.length - 1].lastChild.replaceWith(button);
  }
  return row;
}

// ----------------------------------------------------------------------------------------- the stream of the numbers

let stream = null;

function link(kind, text) {
  if ($("link-text").textContent === text) return;
  $("link").className = `pill ${kind}`;
  $("link-text").textContent = text;
}

function listen() {
  stream?.close();
  stream = new EventSource("web/events");
  stream.onmessage = (event) => {
    const now = JSON.parse(event.data);
    link(now.draining ? "" : "live", now.draining ? "shutting down" : "live");
    show(now);
    frame();
  };
  stream.onerror = () => {
    link("broken", stream.readyState === EventSource.CLOSED ? "signed out; reload the page" : "no connection; trying again …");
  };
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    stream?.close(); // nobody looks
    link("", "paused");
  } else {
    listen();
  }
});
listen();

// -------------------------------------------------------------------------------------------------- frames of a session

let watched = null;
let loading = false;

function watch(session) {
  watched = session.name;
  $("watch").hidden = false;
  $("watch-name").textContent = short(session);
  $("watch-env").max = session.envs - 1;
  $("watch-env").value = 0;
  $("watch-title").focus();
  frame();
}

async function frame() {
  if (watched === null || loading || !$("watch-env").checkValidity()) return;
  loading = true;
  try {
    const answer = await fetch(`web/frames/${watched}/${$("watch-env").value}`);
    const image = $("watch-frame");
    if (answer.status === 200) {
      image.src = await dataUrl(await answer.blob());
      image.hidden = false;
    }
    $("watch-problem").textContent = answer.status === 200 ? "" : "There is no frame now.";
  } catch {
    $("watch-problem").textContent = "the server doesn't answer";
  } finally {
    loading = false;
  }
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = reject;
    reader.readAsDataURL(blob);
  });
}

$("watch-stop").addEventListener("click", () => {
  watched = null;
  $("watch").hidden = true;
  $("watch-frame").hidden = true;
  $("rows").querySelector("button")?.focus();
});
$("watch-env").addEventListener("change", frame);

// --------------------------------------------------------------------------------------------------------- try it

let socket = null;
let episode = { steps: 0, total: 0, over: true };
let waiting = null; // what was asked and isn't answered yet
let seed = {}; // of the last reset
const renders = page.dataset.renders === "yes";
let frames = renders;
let lack = ""; // why there are none

const say = (text, bad = false) => {
  $("said").textContent = text;
  $("said").className = bad ? "problem" : "";
};

function ready() {
  const can = socket?.readyState === WebSocket.OPEN && !waiting;
  const hosted = page.dataset.hosted === "yes"; // an OpenEnv environment itself says what a step after the end means
  for (const button of document.querySelectorAll("#step-form button")) {
    button.setAttribute("aria-disabled", String(!(can && (!episode.over || hosted))));
    button.disabled = socket === null || (episode.over && !hosted);
  }
  $("close").disabled = socket === null;
}

function open() {
  return new Promise((resolve, reject) => {
    const url = new URL(frames ? "ws?render=true" : "ws", location.href);
    url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    socket = new WebSocket(url);
    socket.onopen = resolve;
    socket.onmessage = (event) => answered(JSON.parse(event.data));
    socket.onclose = (event) => {
      reject(new Error("the server refused the connection"));
      socket = null;
      waiting = null;
      episode.over = true;
      if (event.reason && event.reason !== "closed") say(`The session ended: ${event.reason}`, true);
      ready();
    };
  });
}

function send(type, data) {
  waiting = type;
  socket.send(JSON.stringify({ type, data }));
  ready();
}

function answered({ type, data }) {
  const asked = waiting;
  waiting = null;
  if (type === "error") {
    const details = (data.errors ?? []).map(({ loc, msg }) => `${loc.join(".")}: ${msg}`).join("; ");
    const problem = details ? `${data.message.split(":")[0]}: ${details}` : data.message ?? "error";
    if (asked === "reset" && renders) {
      frames = !frames; // perhaps it can be played without them; if not, they weren't the reason
      lack = frames ? "" : `There are no frames: ${problem}`;
      if (!frames) return send("reset", { ...seed, render: false });
    }
    say(problem, true);
    ready();
    return;
  }
  if (asked === "step") episode.steps += 1; // which one that was refused isn't
  const reward = typeof data.reward === "number" ? data.reward : 0;
  episode.total += reward;
  episode.over = Boolean(data.done);
  const ending = data.truncated ? "truncated" : "over";
  say((episode.steps ? `Step ${episode.steps}: reward ${number(data.reward)}.` : `The episode begins. ${lack}`) +
    (episode.over ? ` The episode is ${ending}, with a return of ${number(episode.total)}. Reset to begin another.` : ""));
  $("r-steps").textContent = episode.steps;
  $("r-reward").textContent = number(data.reward);
  $("r-return").textContent = number(episode.total);
  const text = shortly(data.observation);
  $("observation").textContent = text.length > 20000 ? `${text.slice(0, 20000)} … (${text.length} characters)` : text;
  if (data.render) draw(data.render);
  ready();
}

function shortly(observation) {
  const short = (_, part) => (typeof part === "number" ? Number(part.toPrecision(6)) : part);
  // Indented, and then put on one line; a string's own line breaks are escaped.
  const json = (value) => JSON.stringify(value, short, 1).replace(/([[{])\n\s*|\n\s*([\]}])/g, "$1$2").replace(/\n\s*/g, " ");
  const fields = observation !== null && typeof observation === "object" && !Array.isArray(observation);
  if (!fields) return json(observation);
  return Object.entries(observation).map(([key, value]) => `${key}: ${json(value)}`).join("\n");
}

const number = (value) => (typeof value === "number" ? String(Number(value.toPrecision(6))) : "–");

function draw({ dtype, shape, base64 }) {
  if (dtype !== "uint8" || shape?.length !== 3 || shape[2] !== 3) return;
  const raw = atob(base64);
  const canvas = $("canvas");
  [canvas.height, canvas.width] = shape;
  const pixels = new Uint8ClampedArray(shape[0] * shape[1] * 4);
  for (let from = 0, to = 0; from < raw.length; from += 3, to += 4) {
    pixels[to] = raw.charCodeAt(from);
    pixels[to + 1] = raw.charCodeAt(from + 1);
    pixels[to + 2] = raw.charCodeAt(from + 2);
    pixels[to + 3] = 255;
  }
  canvas.getContext("2d").putImageData(new ImageData(pixels, shape[1], shape[0]), 0, 0);
  canvas.hidden = false;
}

function step(action) {
  if (waiting || socket?.readyState !== WebSocket.OPEN) return;
  send("step", action);
}

function collect(element) {
  const { kind } = element.dataset;
  if (kind === "group") {
    const parts = [...element.children].filter((child) => child.dataset.kind);
    return Object.fromEntries(parts.map((part) => [part.dataset.name, collect(part)]));
  }
  if (kind === "choice") return Number(element.querySelector("select").value);
  if (kind === "json") return JSON.parse(element.querySelector("textarea").value);
  const inputs = [...element.querySelectorAll("[data-number]")];
  const values = inputs.map((input) => (input.type === "checkbox" ? Number(input.checked) : Number(input.value)));
  const shape = element.dataset.shape ? element.dataset.shape.split(",").map(Number) : [];
  if (!shape.length) return values[0];
  return shape.slice(1).reduceRight(
    (flat, size) => Array.from({ length: flat.length / size }, (_, i) => flat.slice(i * size, (i + 1) * size)), values);
}

$("reset-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    if (socket === null) await open();
  } catch (error) {
    say(`${error.message}: is there room for another env?`, true);
    return;
  }
  episode = { steps: 0, total: 0, over: true };
  const value = $("seed").value;
  seed = value === "" ? {} : { seed: Number(value) };
  send("reset", seed);
});

$("step-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!$("step") || $("step").disabled) return;
  if (!event.target.reportValidity()) return;
  try {
    const root = event.target.querySelector("[data-kind]");
    const value = collect(root);
    const whole = root.dataset.kind === "group" || page.dataset.hosted === "yes";
    step(whole ? value : { action: value });
  } catch (error) {
    say(`This is no JSON: ${error.message}`, true);
  }
});

for (const button of document.querySelectorAll("[data-kind=buttons] button")) {
  button.addEventListener("click", () => step({ action: Number(button.value) }));
}

for (const slider of document.querySelectorAll("input[type=range]")) {
  const field = $(slider.dataset.of);
  slider.addEventListener("input", () => { field.value = slider.value; });
  field.addEventListener("input", () => { slider.value = field.value; });
}

const leave = () => {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ type: "close" }));
};
window.addEventListener("pagehide", leave); // or the session would count as lost

$("close").addEventListener("click", () => {
  leave();
  say("Closed. Reset to begin again.");
  $("reset").focus();
});
