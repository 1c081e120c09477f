"use strict";
// One page over /api/v1: status by server-sent events, control by POST. No secrets are shown; the
// token stays in this tab's session storage. Text enters the page as text, never as HTML.

const POINTS = 60;
const cards = new Map();
let canControl = false;

const byId = (id) => document.getElementById(id);
const token = () => sessionStorage.getItem("token");
const headers = () => (token() ? { Authorization: `Bearer ${token()}` } : {});

// What one may do, by state: [action, label, question, asked-for value].
const ACTIONS = {
  pause: ["Pause", "Stop reading this feed for now? Its offset stays."],
  resume: ["Resume", null],
  resnapshot: [
    "Re-snapshot",
    "Send all rows again as snapshot events while streaming goes on?",
    ["where", "Only partitions where (may be empty)", ""],
  ],
  skip: [
    "Skip version",
    "Skip a version? Its changes are lost to the sink; the skip is recorded.",
    ["version", "Version", (feed) => feed.offset?.version ?? ""],
  ],
  unskip: [
    "Take back skip",
    "Deliver a version after all that is to be skipped?",
    ["version", "Version", (feed) => feed.orders?.skips?.[0] ?? ""],
  ],
  stop: ["Stop", "Stop this feed until it is started again?"],
  start: ["Start", null],
};
const ALLOWED = {
  paused: ["resume", "stop"],
  blocked: ["resume", "pause", "stop"],
  failed: ["start", "resume", "skip"],
  standby: ["stop"],
  stopped: ["start"],
};
const RUNNING = ["pause", "resnapshot", "skip", "stop"];

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  for (const [name, size] of units) {
    if (seconds >= size || size === 1) {
      const digits = seconds / size < 10 && size > 1 ? 1 : 0;
      return `${(seconds / size).toFixed(digits)} ${name}`;
    }
  }
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return `${count.toFixed(count < 10 && unit ? 1 : 0)} ${units[unit]}`;
}

function rate(value) {
  if (value === null || value === undefined) return "–";
  return value >= 1000 ? `${(value / 1000).toFixed(1)} k` : value.toFixed(value < 10 ? 1 : 0);
}

function card(name) {
  const node = byId("feed").content.firstElementChild.cloneNode(true);
  node.querySelector("h2").textContent = name;
  const entry = { node, rates: [], state: null, controllable: null };
  cards.set(name, entry);
  return entry;
}

function put(node, fact, text, warn = false) {
  const place = node.querySelector(`[data-fact=${fact}]`);
  place.textContent = text;
  place.classList.toggle("warn", warn);
}

function sparkline(node, rates) {
  const top = Math.max(...rates, 1e-9);
  const points = rates.map((value, i) => {
    const x = ((POINTS - rates.length + i) / (POINTS - 1)) * 120;
    return `${x.toFixed(1)},${(26 - (value / top) * 24).toFixed(1)}`;
  });
  node.querySelector(".spark path").setAttribute("d", points.length > 1 ? `M${points.join("L")}` : "");
}

function show(feed) {
  const entry = cards.get(feed.name) ?? card(feed.name);
  const { node, rates } = entry;
  const state = node.querySelector(".state");
  state.textContent = feed.state;
  state.className = `state ${feed.state}`;
  node.querySelector(".table").textContent = `${feed.table} → ${feed.sink}`;
  rates.push(feed.events_per_s ?? 0);
  if (rates.length > POINTS) rates.shift();
  sparkline(node, rates);
  const { offset } = feed;
  put(node, "rate", rate(feed.events_per_s));
  put(
    node, "lag",
    feed.lag_versions
      ? `${feed.lag_versions} version${feed.lag_versions === 1 ? "" : "s"}, ` +
        `${duration(feed.lag_seconds)}, ${bytes(feed.lag_bytes)}`
      : "none",
    feed.lag_versions > 0 && feed.lag_seconds > 300,
  );
  put(node, "offset", offset ? `v${offset.version}${offset.index ? ` +${offset.index}` : ""}` +
    (offset.snapshot ? " snapshot" : "") : "–");
  const loss = feed.seconds_to_loss;
  put(node, "loss", duration(loss), loss !== null && loss < 86400);
  put(node, "lease", feed.owner ? `${feed.lease} (${feed.owner} has it)` : feed.lease);
  put(node, "orders", ordered(feed.orders ?? {}));
  const error = node.querySelector(".error");
  error.hidden = !feed.last_error;
  error.textContent = feed.last_error ?? "";
  const skips = Boolean(feed.orders?.skips);
  if (entry.state !== feed.state || entry.skips !== skips || entry.controllable !== canControl) {
    entry.state = feed.state;
    entry.skips = skips;
    entry.controllable = canControl;
    buttons(node.querySelector(".control"), feed);
  }
  entry.feed = feed;
}

// What was ordered and is not done; it outlives a restart.
function ordered(orders) {
  const parts = [];
  if (orders.paused) parts.push("paused");
  if (orders.skips) parts.push(`skip v${orders.skips.join(", v")}`);
  if (orders.resnapshots) parts.push(`${orders.resnapshots.length} re-snapshot`);
  return parts.join("; ") || "none";
}

function buttons(place, feed) {
  const actions = canControl ? [...(ALLOWED[feed.state] ?? RUNNING)] : [];
  if (canControl && feed.orders?.skips) actions.push("unskip");
  place.setAttribute("aria-label", `Control of ${feed.name}`);
  place.replaceChildren(...actions.map((action) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = ACTIONS[action][0];
    button.addEventListener("click", () => act(feed.name, action, button));
    return button;
  }));
}

function ask(label, question, field, feed) {
  const dialog = byId("ask");
  dialog.querySelector(".question").textContent = `${feed.name}: ${question}`;
  dialog.querySelector(".primary").textContent = label;
  const box = dialog.querySelector("label");
  const input = dialog.querySelector("input");
  box.hidden = !field;
  if (field) {
    box.querySelector("span").textContent = field[1];
    input.value = typeof field[2] === "function" ? field[2](feed) : field[2];
  }
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => {
    resolve(dialog.returnValue === "ok" ? (field ? { [field[0]]: input.value } : {}) : null);
  }, { once: true }));
}

async function act(name, action, button) {
  const [label, question, field] = ACTIONS[action];
  const body = question ? await ask(label, question, field, cards.get(name).feed) : {};
  if (body === null) return;
  if ("version" in body) body.version = Number.parseInt(body.version, 10);
  if (body.where === "") delete body.where;
  button.disabled = true;
  try {
    const answer = await fetch(`api/v1/feeds/${encodeURIComponent(name)}/${action}`, {
      method: "POST",
      headers: { ...headers(), "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    if (answer.status === 401 || answer.status === 403) return signIn();
    const said = await answer.json().catch(() => ({}));
    toast(answer.ok ? `${name}: ${label.toLowerCase()} done` : said.error ?? `failed (${answer.status})`);
  } catch {
    toast("the daemon does not answer");
  } finally {
    button.disabled = false;
  }
}

function toast(text) {
  const node = byId("toast");
  node.textContent = text;
  node.hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { node.hidden = true; }, 6000);
}

function signIn() {
  const dialog = byId("token");
  dialog.returnValue = "";
  dialog.showModal();
  dialog.addEventListener("close", () => {
    const input = dialog.querySelector("input");
    if (dialog.returnValue === "ok") sessionStorage.setItem("token", input.value);
    input.value = "";
    if (dialog.returnValue === "ok") connect();
  }, { once: true });
}

function update(status) {
  canControl = status.control;
  byId("sign-in").hidden = !status.token_wanted || Boolean(token());
  for (const feed of status.feeds) show(feed);
  const there = new Set(status.feeds.map((feed) => feed.name));
  for (const [name, { node }] of cards) {
    if (!there.has(name)) { node.remove(); cards.delete(name); }
  }
  const order = status.feeds.map((feed) => cards.get(feed.name).node);
  const main = byId("feeds");
  if (order.some((node, i) => main.children[i] !== node)) main.replaceChildren(...order);
  const count = (state) => status.feeds.filter((feed) => feed.state === state).length;
  const parts = [`${status.feeds.length} feed${status.feeds.length === 1 ? "" : "s"}`];
  for (const state of ["following", "snapshot", "starting", "standby", "paused", "blocked", "retrying", "failed", "stopped"]) {
    if (count(state)) parts.push(`${count(state)} ${state}`);
  }
  byId("summary").textContent = parts.join(" · ");
}

// fetch, not EventSource, which can't carry the token.
let connection = null;
async function connect() {
  connection?.abort();
  const mine = connection = new AbortController();
  let pause = 1000;
  while (!mine.signal.aborted) {
    try {
      const answer = await fetch("api/v1/events", { headers: headers(), signal: mine.signal });
      if (answer.status === 401 || answer.status === 403) {
        byId("summary").textContent = token() ? "that token was refused" : "a token is needed";
        sessionStorage.removeItem("token");
        byId("sign-in").hidden = false;
        return;
      }
      if (!answer.ok) throw new Error(String(answer.status));
      pause = 1000;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        for (const event of events) {
          const data = event.split("\n").filter((line) => line.startsWith("data: "))
            .map((line) => line.slice(6)).join("\n");
          if (data) update(JSON.parse(data));
        }
      }
    } catch (error) {
      if (mine.signal.aborted) return;
    }
    byId("summary").textContent = "connection lost, trying again …";
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(pause * 2, 15000);
  }
}

byId("sign-in").addEventListener("click", signIn);
connect();
