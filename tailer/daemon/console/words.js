// How figures and states are written, and how a page is put together from text, never from HTML.

export const byId = (id) => document.getElementById(id);

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  for (const [name, size] of units) {
    if (seconds >= size || size === 1) {
      const digits = seconds / size < 10 && size > 1 ? 1 : 0;
      return `${(seconds / size).toFixed(digits)} ${name}`;
    }
  }
}

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return `${count.toFixed(count < 10 && unit ? 1 : 0)} ${units[unit]}`;
}

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value >= 1000 ? `${(value / 1000).toFixed(1)} k` : value.toFixed(value < 10 ? 1 : 0);
}

export const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

export const at = (offset) => (offset
  ? `v${offset.version}${offset.index ? ` +${offset.index}` : ""}${offset.snapshot ? " snapshot" : ""}`
  : "–");

export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();

export function behind(feed) {
  if (feed.snapshot) {
    const left = feed.snapshot.seconds_left;
    return `snapshot ${Math.floor(feed.snapshot.share * 100)} %${left === null ? "" : `, ${duration(left)} left`}`;
  }
  if (!feed.lag_versions) return "–";
  const rows = feed.lag_rows === null ? "rows unknown" : counted(feed.lag_rows, "row");
  return `${counted(feed.lag_versions, "version")}, ${rows}, ${duration(feed.lag_seconds)}, ${bytes(feed.lag_bytes)}`;
}

export const losing = (feed) => feed.seconds_to_loss !== null && feed.seconds_to_loss < 86400;
export const late = (feed) => feed.lag_versions > 0 && feed.lag_seconds > 300;

// The worst first: who must act, then what may be lost, then what is behind.
export function rank(feed) {
  const worst = ["failed", "blocked", "retrying"].indexOf(feed.state);
  if (worst >= 0) return worst;
  if (losing(feed)) return 3;
  return late(feed) ? 4 : 5;
}

// Shows a dialog; true once it was closed with its "ok".
export function agreed(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    // The event comes late: if the dialog is open again, it is of the question before.
    dialog.onclose = () => { if (!dialog.open) resolve(dialog.returnValue === "ok"); };
  });
}

export function put(node, text, warn = false) {
  if (node.textContent !== text) node.textContent = text;
  node.classList.toggle("warn", warn);
}

export function setState(node, state) {
  put(node, state);
  node.className = `state ${state}`;
}

export function element(name, text, attributes = {}) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

export function fillTable(table, titles, rows, otherwise) {
  const text = JSON.stringify([titles, rows]);
  if (table.dataset.shown === text) return;
  table.dataset.shown = text;
  if (!rows.length) {
    const row = element("tr");
    row.append(element("td", otherwise, { class: "soft" }));
    table.replaceChildren(row);
    return;
  }
  const line = (name, values) => {
    const row = element("tr");
    row.append(...values.map((value) => element(name, value)));
    return row;
  };
  table.replaceChildren(line("th", titles), ...rows.map((row) => line("td", row)));
}
