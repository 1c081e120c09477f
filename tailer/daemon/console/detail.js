// One feed: its facts, its last hour, what is unread, its last events.
import { headers, listOrdered, ordersFor, showButtons } from "./orders.js";
import { at, behind, byId, bytes, clock, counted, duration, element, fillTable, losing, put, rate, setState } from "./words.js";

const HOUR_S = 3600;
const SVG = "http://www.w3.org/2000/svg";
let shownName = null;

export function showDetail(feed, canControl, onRefused) {
  const page = byId("detail");
  if (shownName !== feed.name) {
    shownName = feed.name;
    for (const table of page.querySelectorAll("table")) { table.replaceChildren(); delete table.dataset.shown; }
    delete byId("parking").dataset.shown;
    loadPast(feed.name);
    scrollTo(0, 0);
    page.querySelector("h2").focus({ preventScroll: true });
  }
  put(page.querySelector("h2"), feed.name);
  setState(page.querySelector(".state"), feed.state);
  put(page.querySelector(".table"), `${feed.table} → ${feed.sink}`);
  const wrong = byId("wrong");
  const text = [feed.last_error, feed.remedy?.text].join("\n");
  if (wrong.dataset.shown !== text) {
    wrong.dataset.shown = text;
    wrong.replaceChildren(...(feed.last_error ? [
      element("p", feed.last_error, { class: "error" }),
      element("p", feed.remedy?.text ?? "", { class: "remedy" }),
    ] : []));
  }
  showButtons(page.querySelector(".control"), canControl ? ordersFor(feed) : [], [feed], onRefused);
  showFacts([
    ["behind", behind(feed)],
    ["events/s", rate(feed.events_per_s)],
    ["offset", at(feed.offset)],
    ["time to loss", duration(feed.seconds_to_loss), losing(feed)],
    ["delivered", `${feed.events} events`],
    ["parked", feed.parked ? `${counted(feed.parked.rows, "row")}, ${bytes(feed.parked.bytes)} of ${bytes(feed.parked.bytes_max)}` : "–"],
    ["lease", feed.owner ? `${feed.lease} (${feed.owner} has it)` : feed.lease],
    ["orders in force", listOrdered(feed.orders ?? {})],
  ]);
  showParked(feed);
}

// The rows are asked for when there are others.
async function showParked(feed) {
  const section = byId("parking");
  section.hidden = !feed.parked?.rows;
  const text = JSON.stringify(feed.parked);
  if (section.hidden || section.dataset.shown === text) return;
  section.dataset.shown = text;
  try {
    const answer = await fetch(`api/v1/parked/${encodeURIComponent(feed.name)}`, { headers: headers() });
    const said = await answer.json();
    if (shownName !== feed.name) return;
    fillTable(byId("parked"), ["parked", "version", "reason", "file", "id"],
      (said.rows ?? []).map((one) => [
        new Date(one.at).toLocaleString(), `v${one.version}`, one.reason, one.file ?? "", one.id,
      ]), said.error ?? "shown with a token only");
  } catch { delete section.dataset.shown; }
}

// Returns the feed that was shown, if one was.
export function hideDetail() {
  const left = shownName;
  shownName = null;
  return left;
}

function showFacts(facts) {
  const list = byId("facts");
  if (list.children.length !== facts.length) {
    list.replaceChildren(...facts.map(([name]) => {
      const box = element("div");
      box.append(element("dt", name), element("dd", "", { "data-fact": name }));
      return box;
    }));
  }
  facts.forEach(([, text, warn], i) => put(list.children[i].lastChild, text, Boolean(warn)));
}

// The past changes slowly: it is asked for when a feed is opened, and every few seconds then.
async function loadPast(name) {
  while (shownName === name) {
    try {
      const answer = await fetch(`api/v1/recent/${encodeURIComponent(name)}`, { headers: headers() });
      if (answer.ok && shownName === name) showPast(await answer.json());
    } catch { /* the overview says that the daemon does not answer */ }
    await new Promise((resolve) => setTimeout(resolve, 3000));
  }
}

function showPast(past) {
  const now = Date.now() / 1000;
  draw("lag", past.samples.map((one) => [one.time_s, one.lag_seconds]), now, duration);
  draw("rate", past.samples.map((one) => [one.time_s, one.events_per_s]), now, rate);
  strip(past.states, now);
  fillTable(byId("states"), ["since", "state", "why"],
    [...past.states].reverse().slice(0, 12).map((one) => [clock(one.time_s), one.state, one.error ?? ""]),
    "none yet");
  fillTable(byId("unread"), ["version", "committed", "operation", "rows", "size", "files"],
    past.unread.map((one) => [
      `v${one.version}`, clock(one.committed_s), one.operation ?? "unknown", one.rows ?? "unknown", bytes(one.size),
      one.cdcs ? `${one.cdcs} with changes` : `+${one.adds} −${one.removes}`,
    ]),
    "none");
  const columns = [...new Set(past.rows.flatMap((row) => Object.keys(row)))];
  fillTable(byId("rows"), columns, past.rows.map((row) => columns.map((column) => {
    const value = row[column];
    return value === null || value === undefined ? "null"
      : typeof value === "object" ? JSON.stringify(value) : String(value);
  })), "none since this daemon started, or too large to be shown; with a token only");
  fillTable(byId("orders"), ["at", "order", "outcome"],
    past.orders.map((one) => [clock(one.time_s), one.order, one.outcome]), "none since this daemon started");
}

const across = (time, now) => Math.max(0, 600 - ((now - time) / HOUR_S) * 600);

function draw(id, points, now, written) {
  const svg = byId(id);
  const top = Math.max(...points.map(([, value]) => value), 0);
  const path = document.createElementNS(SVG, "path");
  const place = ([time, value]) => `${across(time, now).toFixed(1)},${(86 - (value / (top || 1)) * 80).toFixed(1)}`;
  path.setAttribute("d", points.length > 1 ? `M${points.map(place).join("L")}` : "");
  svg.replaceChildren(path);
  const last = points.at(-1);
  put(svg.parentElement.querySelector("output"),
    last ? `now ${written(last[1])}, at most ${written(top)}` : "no figures yet");
}

function strip(states, now) {
  byId("strip").replaceChildren(...states.map((one, i) => {
    const begin = across(one.time_s, now);
    const end = i + 1 < states.length ? across(states[i + 1].time_s, now) : 600;
    const box = document.createElementNS(SVG, "rect");
    const width = Math.max(end - begin, 1);
    for (const [key, value] of Object.entries({ x: begin, width, y: 0, height: 10 })) box.setAttribute(key, value);
    box.setAttribute("class", one.state);
    return box;
  }));
}
