"use strict";
// The page of a cluster: it asks once a second, and draws what it is told. All text of users is set as text, never as
// HTML.

const colors = ["#2a78d6", "#e0652b", "#1f9e77", "#a94fb5", "#c9a227", "#3aa6b9", "#d1495b", "#6b7a8f",
  "#7c9c34", "#8c5a3c"];
const known = new Map();  // sessions that the page shows, or showed: whose they are
const hues = new Map();   // places of tenants in the order of coming; empty where the cluster has no file of them
const mostKnown = 1024;   // sessions of the last ten minutes, or so: those that have ended are forgotten beyond it

// color returns a session's color: one of its own or, where there are tenants, its tenant's, lighter for some.
function color(session) {
  if (!hues.size) return colors[session % colors.length];
  const s = known.get(session);
  return s ? ofTenant(s.tenant, [0, 0.32, 0.16, 0.48][s.shade % 4]) : gray;
}

const gray = "#888888";

// ofTenant returns a tenant's color, lighter by a part; gray where there is no such tenant.
function ofTenant(name, lighter) {
  if (!hues.has(name)) return gray;
  const place = hues.get(name), base = colors[place % colors.length];
  const darker = 0.65 ** Math.floor(place / colors.length);  // so that the eleventh does not look like the first
  return "#" + [1, 3, 5].map(i => parseInt(base.slice(i, i + 2), 16) * darker)
    .map(v => Math.round(v + (255 - v) * lighter).toString(16).padStart(2, "0")).join("");
}

// remember notes whose some sessions are. Each keeps its color: a session of a tenant that of its place among the
// tenant's.
function remember({ tenants, sessions }) {
  for (const t of tenants) if (!hues.has(t.name)) hues.set(t.name, hues.size);
  for (const s of sessions) if (!known.has(s.session)) {
    const shade = [...known.values()].filter(other => other.tenant === s.tenant).length;
    known.set(s.session, { name: s.name, tenant: s.tenant, shade });
  }
  const there = new Set(sessions.map(s => s.session));
  for (const id of known.keys()) {
    if (known.size <= mostKnown) break;
    if (!there.has(id)) known.delete(id);
  }
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let u = 0;
  for (; bytes >= 1024 && u < units.length - 1; u++) bytes /= 1024;
  return bytes.toFixed(u ? 1 : 0) + " " + units[u];
}

// calledAt names the line of the user's code that called something, where that is known.
function calledAt({ line, first_call }) {
  return line ? `, ${first_call ? "first called" : "called"} at ${line}` : "";
}

// waitText says what devices of a worker wait for.
function waitText(m) {
  const operation = `operation ${m.gang}${calledAt(m)}`, what = m.program ? `${m.program} (${operation})` : operation;
  return (m.devices.length > 1 ? `devices ${m.devices.join(", ")} have` : `device ${m.devices[0]} has`) +
    (m.at ? ` waited for ${time(m.since_ms)} in ${m.at} of ${what} for ${m.awaits}` :
      ` stood for ${time(m.since_ms)} at ${what}, which waits for ${m.awaits}`);
}

function time(ms) {
  if (ms < 100) return Math.round(ms) + " ms";
  if (ms < 60e3) return (ms / 1e3).toFixed(1) + " s";
  const s = Math.round(ms / 1e3);
  if (s < 3600) return Math.floor(s / 60) + " min " + s % 60 + " s";
  return Math.floor(s / 3600) + " h " + Math.floor(s % 3600 / 60) + " min";
}

const sum = all => all.reduce((a, b) => a + Math.max(b, 0), 0);
const byId = id => document.getElementById(id);

function make(tag, text, className) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (className) e.className = className;
  return e;
}

// table fills a table: columns are [head, isNumber], rows are lists of texts or elements. Without rows its section
// hides.
function table(id, columns, rows) {
  const t = byId(id);
  t.closest("section").hidden = rows.length === 0;
  const head = make("tr");
  for (const [text, isNumber] of columns) head.append(make("th", text, isNumber ? "number" : ""));
  const body = rows.map(row => {
    const tr = make("tr");
    row.forEach((cell, i) => {
      const td = make("td", undefined, columns[i][1] ? "number" : "");
      td.append(cell instanceof Node ? cell : String(cell));
      tr.append(td);
    });
    return tr;
  });
  t.replaceChildren(head, ...body);
}

// nameOf says whose a session is.
function nameOf(session) {
  const s = known.get(session);
  return session + (s ? `, ${s.name}${s.tenant ? ` of ${s.tenant}` : ""}` : ", which has ended");
}

const describe = session => "session " + nameOf(session);

// sessionName is a session with its color: its number, in a table that has the rest in columns, or whose it is.
function sessionName({ session }, text = nameOf(session)) {
  const e = make("span");
  const swatch = make("i", "", "swatch");
  swatch.style.background = color(session);
  e.append(swatch, String(text));
  return e;
}

const workers = report => report.islands.flatMap(is => is.workers.map(w => ({ island: is, ...w })));

function showNow(report, past) {
  const all = workers(report), devices = all.reduce((n, w) => n + w.devices.length, 0), last = past.at.length - 1;
  const busy = last < 0 ? 0 : past.sessions.reduce((n, s) => n + s.use[last], 0);
  const cards = [
    [devices, devices === 1 ? "device" : "devices"], [all.length, all.length === 1 ? "worker" : "workers"],
    [report.sessions.length, report.sessions.length === 1 ? "session" : "sessions"],
    [devices && last >= 0 ? Math.min(100, 100 * busy / devices).toFixed(0) + " %" : "–", "of devices busy"],
    [last < 0 ? "–" : Math.round(past.gangs_per_second[last]).toLocaleString("en"), "gangs a second"],
    [size(sum(all.flatMap(w => w.last.memory_in_use))), "device memory"],
  ];
  byId("cards").replaceChildren(...cards.map(([value, name]) => {
    const card = make("div", undefined, "card");
    card.append(make("b", value), make("span", name));
    return card;
  }));
  byId("cluster").textContent = `cluster ${report.cluster}, up ${time(report.uptime_ms)}` +
    (report.waits ? `: ${report.waits}` : "");
}

// silent says how long ago a worker was heard, in another color once it has missed three heartbeats.
function silent(worker, report) {
  const quiet = Math.max(1000, 3 * (report.heartbeat_ms || 1000));
  return make("span", time(worker.silent_ms) + " ago", worker.silent_ms < quiet ? "" : "warn");
}

function showTables(report) {
  const all = workers(report), names = new Map(all.map(w => [w.process.number, w.process.name]));
  table("workers", [["island"], ["worker"], ["devices"], ["memory in use", 1], ["limit", 1], ["host memory", 1],
    ["objects", 1], ["gangs", 1], ["last heard", 1]], all.map(w => [
    w.island.name, w.process.name, `${w.devices.length} × ${w.devices[0]?.kind ?? ""}`, size(sum(w.last.memory_in_use)),
    sum(w.devices.map(d => d.memory_limit)) ? size(sum(w.devices.map(d => d.memory_limit))) : "–",
    size(w.last.host_bytes), w.last.objects, w.gangs, silent(w, report)]));
  const percent = part => `${Math.round(100 * part)} %`, quota = (has, of) => of ? `${has} of ${of}` : has;
  const ofEach = (all, most, of, each) => {
    const e = make("span", size(all));
    if (of) e.append(make("span", `${size(most)} of ${size(of)} a ${each}`, "part"));
    return e;
  };
  const shared = report.tenants.length > 0;
  table("tenants", [["tenant"], ["class"], ["weight", 1], ["at least", 1], ["at most", 1], ["promised", 1], ["got", 1],
    ["sessions", 1], ["in slices", 1], ["memory", 1], ["host memory", 1], ["device time", 1]], report.tenants.map(t => [
    t.name + (t.removed ? " (removed)" : ""), t.class, t.weight, t.guaranteed ? percent(t.guaranteed) : "–",
    t.at_most < 1 ? percent(t.at_most) : "–", percent(t.promised), percent(t.got),
    quota(t.sessions, t.max_sessions), t.max_slice_devices ? quota(t.slice_devices, t.max_slice_devices) : "–",
    ofEach(t.bytes, t.most_bytes, t.device_memory, "device"),
    ofEach(t.host_bytes, t.most_host_bytes, t.host_memory, "worker"),
    time(t.device_ns / 1e6)]));
  table("sessions", [["session"], ...(shared ? [["tenant"]] : []), ["client"], ["user"], ["host"],
    ["devices", 1], ["objects", 1], ["memory", 1],
    ["under way", 1], ["device time", 1], ["age", 1]], report.sessions.map(s => [
    sessionName(s, s.session), ...(shared ? [s.tenant] : []), s.name, s.user || "?", s.host || "?",
    `${s.bytes.length} × ${s.platforms.join(", ")}`, s.objects, size(sum(s.bytes)), s.under_way,
    time(s.device_ns / 1e6), time(s.age_ms)]));
  table("running", [["worker"], ["devices"], ["session"], ["program"], ["for", 1], ["usually", 1]],
    all.flatMap(w => w.last.running.map(r => [
      w.process.name, r.devices.join(", "), sessionName(r), r.program + calledAt(r) +
        (r.behind ? ` (and ${r.behind} queued)` : "") + (r.gone ? " – its client has left" : ""),
      time(r.since_ms), r.usual_ms ? time(r.usual_ms) : "–"]).concat(
      w.last.more_running ? [[w.process.name, "", "", `and ${w.last.more_running} more`, "", ""]] : [])));
  const who = all => all.map(h => describe(h.session) + (h.bytes > 0 ? ` (${size(h.bytes)})` : "")).join("; ");
  const forWhat = {
    client: () => "bytes that its client is sending", program: () => "its program to be loaded",
    work: () => "computations under way to end",
    turn: h => "its turn behind " + who(h.holders), frees: h => "frees of " + who(h.holders),
    quota: h => "its tenant's quota of memory: " + who(h.holders),
    "host-quota": h => "its tenant's quota of host memory: " + (who(h.holders) || "its own earlier operations"),
    memory: h => "memory of " + who(h.holders),
  };
  table("held", [["session"], ["operations", true], ["oldest"], ["needs"], ["for", true], ["waits for"]],
    report.sessions.filter(s => s.held && s.held.operations > 0).map(s => [
      sessionName(s), s.held.operations, s.held.what + calledAt(s.held),
      size(s.held.need) + (s.held.waits_for === "host-quota" ? ` of ${s.held.worker_name}'s machine` :
        ` on device ${s.held.local} of ${s.held.worker_name || "a lost worker"}`), time(s.held.since_ms),
      (forWhat[s.held.waits_for] ?? forWhat.memory)(s.held)]));
  const spanName = span => `${names.get(span.worker) ?? "a lost worker"}/${span.local}` +
    (span.count > 1 ? `-${span.local + span.count - 1}` : "");
  table("slices", [["session"], ["slice"], ["devices"]], report.sessions.flatMap(s => s.slices.map(slice => [
    sessionName(s), slice.slice,
    slice.devices.map(spanName).join(", ") + (slice.exclusive ? " (exclusive)" : "")])));
  const how = {
    "exclusive slice": "exclusive slice", slice: "slice", session: "asked for at its start", use: "in use",
    queue: "reserved for an earlier request",
  };
  table("queue", [["place", true], ["session"], ["wants"], ["priority", true], ["since", true], ["at most", true],
    ["waits for"]],
    report.slice_waits.map((q, i) => [i + 1, sessionName(q),
      [`${q.devices} ${q.devices > 1 ? "devices" : "device"}`, q.exclusive ? "exclusive" : "", q.island, q.kind]
        .filter(x => x).join(", "), q.priority, time(q.since_ms), q.left_ms < 0 ? "–" : time(q.since_ms + q.left_ms),
      (q.quota ? `its tenant's quota of ${q.quota} devices in slices: ` : "") +
        q.holders.map(h => `${h.devices} of session ${nameOf(h.session)} (${how[h.how]})`).join("; ") ||
        "devices reserved for requests before it"]));
  table("waits", [["worker"], ["what its devices wait for"]],
    all.flatMap(w => w.last.standing.map(m => [w.process.name, waitText(m)]).concat(
      w.last.more_standing ? [[w.process.name, `and ${w.last.more_standing} more`]] : [])));
}

function showTraces(all) {
  table("traces", [["recorded", true], ["session"], ["client"], ["user"], ["host"], ["over", true], ["file"]],
    all.reverse().map(t => {
      const link = make("a", `${t.name} (${size(t.bytes)}, compressed)`);
      link.href = "api/trace?number=" + t.number;
      return [time(t.age_ms) + " ago", sessionName(t, t.session), t.client, t.user || "?", t.host || "?",
        time(t.took_ms), link];
    }));
}

const shown = []; // events, newest first
function showEvents(answer) {
  const now = Date.now();
  for (const e of answer.events) shown.unshift({ at: new Date(now - e.age_ms), ...e });
  shown.length = Math.min(shown.length, 200);
  if (answer.events.length === 0 && byId("events").rows.length) return;
  table("events", [["when"], ["kind"], ["what"]], shown.map(e => {
    const text = make("span", e.text, e.warn ? "warn" : "");
    if (e.reason) text.append(make("span", e.reason, "reason"));
    return [e.at.toLocaleTimeString("en-GB"), e.kind, text];
  }));
}

const plots = {};
// plot draws series over time, up to their highest value and at least up to one; what they are may change, and then the
// plot is made anew. The values of a series are where it is drawn, its own are what the legend says.
function plot(id, at, series, least) {
  const key = series.map(s => s.label).join("\n") + least, data = [at, ...series.map(s => s.values)], into = byId(id);
  if (plots[id]?.key === key) {
    plots[id].chart.series.slice(1).forEach((s, i) => s.own = series[i].own);
    plots[id].chart.setData(data);
    return;
  }
  plots[id]?.chart.destroy();
  const axis = { stroke: getComputedStyle(document.body).color, grid: { stroke: "#8883" } };
  const clock = (u, splits) => splits.map(at => new Date(at * 1e3).toLocaleTimeString("en-GB"));
  plots[id] = { key, chart: new uPlot({
    width: into.clientWidth, height: 200, axes: [{ ...axis, values: clock, space: 80 }, { ...axis, size: 60 }],
    scales: { y: { range: (u, low, high) => [0, Math.max(high, least) || 1] } },
    series: [{ value: (u, at) => at == null ? "now" : clock(u, [at])[0] }, ...series.map(s => ({
      label: s.label, stroke: s.color, fill: s.color, width: 1, points: { show: false },
      own: s.own, value: (u, v, i, at) => (u.series[i].own[at ?? u.series[i].own.length - 1] ?? 0).toFixed(2) }))],
  }, data, into) };
}

addEventListener("resize", () => {
  for (const [id, { chart }] of Object.entries(plots)) chart.setSize({ width: byId(id).clientWidth, height: 200 });
});

// withEndedTogether returns series of sessions' use over time: one for each that is there, and one for those of a
// tenant that have ended, of which there may be many.
function withEndedTogether(past, report) {
  const there = new Set(report.sessions.map(s => s.session)), ended = new Map(), live = [];
  for (const s of past.sessions) {
    if (there.has(s.session)) {
      live.push({ label: `session ${s.session}, ${s.client}`, color: color(s.session), own: s.use });
      continue;
    }
    const of = ended.get(s.tenant);
    if (of) of.own = of.own.map((v, i) => v + s.use[i]);
    else ended.set(s.tenant, { label: "sessions that have ended" + (s.tenant ? ` of ${s.tenant}` : ""),
      color: ofTenant(s.tenant, 0.64), own: s.use });
  }
  return [...ended.values(), ...live];
}

function showPlots(past, report) {
  // Stacked: each series is drawn up to the sum of itself and those below, the tallest first.
  let below = past.at.map(() => 0);
  const stacked = withEndedTogether(past, report).map(s => {
    below = below.map((v, i) => v + s.own[i]);
    return { ...s, values: below };
  }).reverse();
  const idle = { label: "no session", color: gray, values: below, own: below };
  plot("use", past.at, stacked.length ? stacked : [idle], Math.max(0, ...past.devices));
  const gangs = past.gangs_per_second;
  plot("gangs", past.at, [{ label: "gangs a second", color: colors[0], values: gangs, own: gangs }], 0);
}

async function ask(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

let newest = 0;
async function look() {
  const state = byId("state");
  try {
    const [report, past, events, traces] = await Promise.all(
      [ask("api/status"), ask("api/history"), ask("api/events?after=" + newest), ask("api/traces")]);
    if (events.newest_event < newest) { // another controller
      newest = 0, shown.length = 0;
    } else {
      newest = events.newest_event;
      showEvents(events);
    }
    remember({ tenants: report.tenants,
      sessions: [...past.sessions.map(s => ({ ...s, name: s.client })), ...report.sessions] });
    showNow(report, past);
    await showTimeline(report);
    showTopology(report);
    showTables(report);
    showPlots(past, report);
    showTraces(traces);
    state.textContent = "";
    state.className = "";
  } catch (error) {
    state.textContent = "the controller does not answer: " + error.message;
    state.className = "warn";
  }
  setTimeout(look, document.hidden ? 10000 : 1000);
}
addEventListener("DOMContentLoaded", look);
