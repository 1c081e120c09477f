// Orders: what may be done in which state, the question before it, and the request.
import { agreed, byId, counted, element } from "./words.js";

export const token = () => sessionStorage.getItem("token");
export const headers = () => (token() ? { Authorization: `Bearer ${token()}` } : {});

// By order: [label, question, asked-for value].
const ORDERS = {
  pause: ["Pause", "Stop reading this feed for now? Its offset stays."],
  resume: ["Resume", null],
  resnapshot: [
    "Re-snapshot",
    "Send all rows again as snapshot events while streaming goes on?",
    ["where", "Only partitions where (may be empty)", () => ""],
  ],
  skip: [
    "Skip version",
    "Skip a version? Its changes are lost to the sink; the skip is recorded.",
    ["version", "Version", (feed) => feed.remedy?.version ?? feed.offset?.version ?? ""],
  ],
  unskip: [
    "Take back skip",
    "Deliver a version after all that is to be skipped?",
    ["version", "Version", (feed) => feed.orders?.skips?.[0] ?? ""],
  ],
  "stop-resnapshot": ["Stop re-snapshot", "Send no more of its rows again? What was sent stays."],
  rewind: [
    "Rewind",
    "Deliver again what follows a version? A copy is taken back to it first.",
    ["to", "Version or time", () => ""],
  ],
  "replay-parked": [
    "Deliver parked rows",
    "Deliver the rows that the sink refused, now that the cause is gone?",
    ["ids", "Only these ids (may be empty)", () => ""],
  ],
  "drop-parked": [
    "Drop parked rows",
    "Drop the rows that the sink refused? It never gets them.",
    ["ids", "Only these ids (may be empty)", () => ""],
  ],
  stop: ["Stop", "Stop this feed until it is started again?"],
  start: ["Start feed", null],
  reload: ["Reload configuration", "Read the configuration file again? Feeds that changed restart."],
  accept: ["Accept schema and continue", "Deliver with the new schema from now on?"],
};
const ALLOWED = {
  paused: ["resume", "stop"],
  blocked: ["accept", "pause", "stop"],
  failed: ["start", "skip"],
  standby: ["stop"],
  stopped: ["start", "rewind"],
};
const RUNNING = ["pause", "resnapshot", "skip", "stop"];

// The orders that a feed takes now; the one that mends its error comes first.
export function ordersFor(feed) {
  const orders = [...(ALLOWED[feed.state] ?? RUNNING)];
  if (feed.orders?.skips) orders.push("unskip");
  if (feed.parked?.rows && ["stopped", "failed"].includes(feed.state)) orders.push("replay-parked", "drop-parked");
  if (feed.orders?.resnapshots) orders.push("stop-resnapshot");
  const mending = mendingOrder(feed);
  return mending ? [mending, ...orders.filter((order) => order !== mending)] : orders;
}

// What was ordered and is not done; it outlives a restart.
export function listOrdered(orders) {
  const parts = [];
  if (orders.paused) parts.push("paused");
  if (orders.skips) parts.push(`skip v${orders.skips.join(", v")}`);
  if (orders.resnapshots) parts.push(counted(orders.resnapshots.length, "re-snapshot"));
  return parts.join("; ") || "none";
}

export function mendingOrder(feed) {
  const order = feed.remedy?.order;
  if (!order || !["failed", "blocked"].includes(feed.state)) return null;
  return order === "resume" ? "accept" : order;
}

export function showButtons(place, orders, feeds, onRefused) {
  const text = JSON.stringify([orders, feeds.map((feed) => feed.name)]);
  place.feeds = feeds; // what a button asks about is as new as the page
  if (place.dataset.shown === text) return;
  place.dataset.shown = text;
  place.setAttribute("aria-label", `Control of ${feeds.map((feed) => feed.name).join(", ")}`);
  // Who uses the keyboard stays at the buttons when an order has changed them.
  const focused = place.contains(document.activeElement);
  place.replaceChildren(...orders.map((order, i) => {
    const button = element("button", ORDERS[order][0], { type: "button" });
    if (i === 0 && mendingOrder(feeds[0]) === order) button.className = "primary";
    button.addEventListener("click", () => give(order, place.feeds, button, onRefused));
    return button;
  }));
  if (focused) place.firstElementChild?.focus();
}

async function ask(order, feeds) {
  const [label, question, field] = ORDERS[order];
  const dialog = byId("ask");
  const who = order === "reload" ? "Daemon" : feeds.length > 1 ? `${feeds.length} feeds` : feeds[0].name;
  dialog.querySelector(".question").textContent = `${who}: ${question}`;
  dialog.querySelector(".primary").textContent = label;
  const box = dialog.querySelector("label");
  const input = dialog.querySelector("input");
  box.hidden = !field;
  if (field) {
    box.querySelector("span").textContent = field[1];
    input.value = field[2](feeds[0]);
  }
  if (!await agreed(dialog)) return null;
  return field ? { [field[0]]: input.value } : {};
}

async function give(order, feeds, button, onRefused) {
  if (button.ariaDisabled) return; // "disabled" would take the focus away
  const [label, question] = ORDERS[order];
  const body = question ? await ask(order, feeds) : {};
  if (body === null) return;
  if ("version" in body) body.version = Number.parseInt(body.version, 10);
  if (body.where === "") delete body.where;
  if ("ids" in body) body.ids = body.ids.match(/[^\s,]+/g); // null: all
  const verb = order === "accept" ? "resume" : order;
  const paths = order === "reload" ? ["api/v1/reload"]
    : feeds.map((feed) => `api/v1/feeds/${encodeURIComponent(feed.name)}/${verb}`);
  button.ariaDisabled = "true";
  let outcome = "done";
  try {
    for (const path of paths) {
      const answer = await fetch(path, {
        method: "POST",
        headers: { ...headers(), "Content-Type": "application/json" },
        body: JSON.stringify(body),
      });
      if (answer.status === 401 || answer.status === 403) return onRefused();
      const said = await answer.json().catch(() => ({}));
      if (!answer.ok) return toast(said.error ?? `failed (${answer.status})`);
      outcome = said.outcome ?? outcome;
    }
    toast(`${label}: ${outcome}`);
  } catch {
    toast("the daemon does not answer");
  } finally {
    button.ariaDisabled = null;
  }
}

export function toast(text) {
  const node = byId("toast");
  node.textContent = text;
  node.hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { node.hidden = true; }, 6000);
}
