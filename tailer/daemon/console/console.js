// One page over /api/v1: status by server-sent events, control by POST. No secrets are shown; the
// token stays in this tab's session storage. Text enters the page as text, never as HTML.
import { hideDetail, showDetail } from "./detail.js";
import { headers, mendingOrder, showButtons, token } from "./orders.js";
import { agreed, at, behind, byId, counted, duration, element, late, losing, put, rank, rate, setState } from "./words.js";

const STATES = ["failed", "blocked", "retrying", "following", "snapshot", "starting", "standby", "paused", "stopped"];
const PROBLEMS_MAX = 20;
const rows = new Map();
let status = { control: false, token_wanted: false, feeds: [] };

const address = (name) => `#feed=${encodeURIComponent(name)}`;
const opened = () => (location.hash.startsWith("#feed=") ? decodeURIComponent(location.hash.slice(6)) : null);

function show(feed) {
  let node = rows.get(feed.name);
  if (!node) {
    node = byId("feed").content.firstElementChild.cloneNode(true);
    node.href = address(feed.name);
    node.querySelector("b").textContent = feed.name;
    rows.set(feed.name, node);
  }
  setState(node.querySelector(".state"), feed.state);
  put(node.querySelector("small"), `${feed.table} → ${feed.sink}`);
  const fact = (name) => node.querySelector(`[data-fact=${name}]`);
  put(fact("lag"), behind(feed), late(feed));
  put(fact("rate"), rate(feed.events_per_s));
  put(fact("offset"), at(feed.offset));
  put(fact("loss"), duration(feed.seconds_to_loss), losing(feed));
  return node;
}

// The same error of many feeds is one problem: a server that is away, a file with a mistake.
function problems(feeds) {
  const found = new Map();
  for (const feed of feeds) {
    if (rank(feed) > 3) continue;
    const losingText = `Unread data may be removed in ${duration(feed.seconds_to_loss)}.`;
    const error = rank(feed) === 3 ? losingText : feed.last_error ?? "no reason is known";
    const key = `${feed.state} ${error}`;
    if (!found.has(key)) found.set(key, { error, feeds: [] });
    found.get(key).feeds.push(feed);
  }
  return [...found.values()];
}

function showProblems(feeds) {
  const found = problems(feeds);
  byId("trouble").hidden = !found.length;
  const place = byId("problems");
  const shown = found.slice(0, PROBLEMS_MAX);
  const rest = found.length - shown.length;
  byId("more").hidden = !rest;
  put(byId("more"), `${counted(rest, "more problem")}: their feeds are below, the worst first.`);
  while (place.children.length > shown.length) place.lastChild.remove();
  shown.forEach((problem, i) => {
    const node = place.children[i]
      ?? place.appendChild(byId("problem").content.firstElementChild.cloneNode(true));
    const [first] = problem.feeds;
    setState(node.querySelector(".state"), first.state);
    const names = node.querySelector(".names");
    const text = problem.feeds.map((feed) => feed.name).join("\n");
    if (names.dataset.shown !== text) {
      names.dataset.shown = text;
      const links = problem.feeds.slice(0, 5).map((feed) => element("a", feed.name, { href: address(feed.name) }));
      const more = problem.feeds.length - links.length;
      names.replaceChildren(...links, ...(more ? [`and ${more} more`] : []));
    }
    put(node.querySelector(".error"), problem.error);
    put(node.querySelector(".remedy"), first.remedy?.text
      ?? "The feed does not keep up: look at its sink, or raise the table's retention.");
    const order = status.control ? mendingOrder(first) : null;
    const orders = order ? [order] : [];
    if (order && order !== "accept" && first.remedy.version !== null && problem.feeds.length === 1) orders.push("skip");
    showButtons(node.querySelector(".control"), orders, problem.feeds, signIn);
  });
}

function showSummary(feeds) {
  const parts = [counted(feeds.length, "feed")];
  for (const state of STATES) {
    const count = feeds.filter((feed) => feed.state === state).length;
    if (count) parts.push(`${count} ${state}`);
  }
  put(byId("summary"), parts.join(" · "));
  const filter = byId("filter");
  if (filter.options.length === 1) filter.append(...STATES.map((state) => element("option", state)));
}

function render() {
  const { feeds } = status;
  const name = opened();
  const feed = feeds.find((one) => one.name === name);
  byId("detail").hidden = !feed;
  byId("overview").hidden = Boolean(feed);
  document.title = feed ? `${feed.name} · delta-tailer` : "delta-tailer";
  showSummary(feeds);
  if (feed) return showDetail(feed, status.control, signIn);
  const left = hideDetail();
  const ordered = [...feeds].sort((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name));
  showProblems(ordered);
  const sought = byId("search").value.trim().toLowerCase();
  const state = byId("filter").value;
  const matching = ordered.filter((one) => (!state || one.state === state)
    && (!sought || `${one.name} ${one.table} ${one.sink}`.toLowerCase().includes(sought)));
  const nodes = matching.map(show);
  const place = byId("feeds");
  if (nodes.length !== place.children.length || nodes.some((node, i) => place.children[i] !== node)) {
    const focused = document.activeElement;
    place.replaceChildren(...nodes);
    if (nodes.includes(focused)) focused.focus();
  }
  byId("none").hidden = nodes.length > 0 || feeds.length === 0;
  const there = new Set(feeds.map((one) => one.name));
  if (left) rows.get(left)?.focus();
  for (const gone of [...rows.keys()].filter((one) => !there.has(one))) rows.delete(gone);
}

function update(news) {
  status = news;
  byId("sign-in").hidden = !status.token_wanted || Boolean(token());
  render();
}

async function signIn() {
  const input = byId("token").querySelector("input");
  const ok = await agreed(byId("token"));
  if (ok) sessionStorage.setItem("token", input.value);
  input.value = "";
  if (ok) connect();
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
        // Only the newest counts if the page has fallen behind.
        const last = events.at(-1);
        if (last?.startsWith("data: ")) update(JSON.parse(last.slice(6)));
      }
    } catch (error) {
      if (mine.signal.aborted) return;
    }
    byId("summary").textContent = "connection lost, trying again …";
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(pause * 2, 15000);
  }
}

function endSearch() {
  byId("search").value = "";
  byId("filter").value = "";
  if (["INPUT", "SELECT"].includes(document.activeElement?.tagName)) document.activeElement.blur();
  render();
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = ["INPUT", "SELECT"].includes(document.activeElement?.tagName);
  if (event.key === "Escape") {
    if (opened()) location.hash = "";
    else endSearch();
  } else if (typing) {
    if (event.key === "Enter" && document.activeElement === byId("search")) byId("feeds").firstElementChild?.focus();
    return;
  } else if (event.key === "/") byId("search").focus();
  else if (event.key === "?") byId("help").showModal();
  else if (event.key === "j" || event.key === "k") {
    const nodes = [...byId("feeds").children];
    const here = nodes.indexOf(document.activeElement);
    nodes[Math.min(nodes.length - 1, Math.max(0, here + (event.key === "j" ? 1 : -1)))]?.focus();
  } else return;
  event.preventDefault();
}

byId("sign-in").addEventListener("click", signIn);
byId("search").addEventListener("input", render);
byId("filter").addEventListener("change", render);
addEventListener("hashchange", render);
addEventListener("keydown", press);
connect();
