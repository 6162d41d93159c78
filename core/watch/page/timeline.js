"use strict";
// What devices did in the last seconds: a lane for each device, a bar for each computation. It stands on page.js.

const lanes = new Map();  // by worker's number and device: the lane as the controller tells it, with its latest bars
// since: from when on workers have told what these devices did, in answer to the first question
const timeline = { newest: 0, now: 0, since: 0, selection: 0, first: 0, devices: 0, drawn: [], running: new Map() };
const lagMs = 1200;  // from now to the right edge: workers tell once a second what has ended
const keptMs = 12e3;  // how long bars stay, as in the controller: for the longest span, 10 s, and lagMs
const perMs = 1e4;  // the controller tells tenths of a microsecond
const labelWidth = 110, axisHeight = 18;  // pixels
const element = byId("timeline");

// query says which devices are shown.
function query() {
  const values = new URLSearchParams({ first: timeline.first, after: timeline.newest });
  const [kind, ...rest] = byId("timeline-of").value.split(":");
  if (kind === "island" || kind === "worker") values.set(kind, rest.join(":"));
  return "api/timeline?" + values;
}

// choose has other devices shown.
function choose(first) {
  timeline.first = first, timeline.newest = 0, timeline.selection++;
  lanes.clear();
  followTimeline();
}

// offer fills the list of what can be chosen: islands where there are several, and workers.
function offer(report) {
  const wanted = [["", "all devices"]];
  if (report.islands.length > 1)
    for (const is of report.islands) wanted.push(["island:" + is.name, "island " + is.name]);
  const all = workers(report);
  if (all.length > 1) for (const w of all) wanted.push(["worker:" + w.process.number, w.process.name]);
  const list = byId("timeline-of"), key = JSON.stringify(wanted);
  if (list.dataset.key === key) return;
  const value = list.value;
  list.dataset.key = key;
  list.replaceChildren(...wanted.map(([value, text]) => new Option(text, value)));
  list.value = wanted.some(([v]) => v === value) ? value : "";
  list.hidden = wanted.length === 1;
  if (list.value !== value) choose(0);
}

// take adds what the controller tells.
function take(answer) {
  const told = answer.lanes.flatMap(lane => lane.bars.slice(0, 1).map(([, , , begin]) => begin / perMs));
  if (!lanes.size || answer.now / perMs > timeline.now + keptMs) timeline.since = Math.min(answer.now / perMs, ...told);
  timeline.now = answer.now / perMs, timeline.newest = answer.newest, timeline.devices = answer.devices;
  const there = new Set();
  for (const lane of answer.lanes) {
    const key = lane.process + "/" + lane.device, bars = lanes.get(key)?.bars ?? [];
    there.add(key);
    for (const [session, program, runs, begin, end] of lane.bars)
      bars.push({ session, program: program < 0 ? null : answer.programs[program], runs,
        begin: begin / perMs, end: end / perMs });
    const old = bars.findIndex(b => b.end > timeline.now - keptMs);
    bars.splice(0, old < 0 ? bars.length : old);
    lanes.delete(key);  // and behind those that were told before it
    lanes.set(key, { ...lane, bars });
  }
  for (const key of lanes.keys()) if (!there.has(key)) lanes.delete(key);
}

async function followTimeline() {
  const selection = timeline.selection;
  try {
    const answer = await ask(query());
    if (selection !== timeline.selection) return;  // something else has been chosen since
    if (answer.newest < timeline.newest || answer.now / perMs < timeline.now)
      return choose(timeline.first);  // another controller
    take(answer);
  } catch { return; }  // which the rest of the page tells
  if (!byId("timeline-hold").checked) drawTimeline();
}

// runningOn returns what a lane's device computes, of which there is no bar yet.
function runningOn(lane) {
  const r = timeline.running.get(lane.process + "/" + lane.device);
  return r && { ...r, begin: timeline.now - r.since };
}

function drawTimeline() {
  const all = [...lanes.values()], seconds = Number(byId("timeline-span").value), dots = devicePixelRatio || 1;
  const height = all.length > 32 ? 12 : 18, width = element.clientWidth;
  element.style.height = all.length * height + axisHeight + "px";
  element.width = width * dots, element.height = (all.length * height + axisHeight) * dots;
  const c = element.getContext("2d"), end = timeline.now - lagMs, begin = end - seconds * 1e3;
  const known = Math.min(Math.max(begin, timeline.since), end);
  const scale = (width - labelWidth) / (end - begin), style = getComputedStyle(document.body);
  c.scale(dots, dots);
  c.font = `11px ${style.fontFamily}`, c.textBaseline = "middle";
  const shares = new Map();
  all.forEach((lane, row) => {
    const y = row * height;
    c.fillStyle = "#8882";
    c.fillRect(labelWidth + (known - begin) * scale, y + 1, (end - known) * scale, height - 2);
    c.fillStyle = style.color;
    c.fillText(`${lane.worker}/${lane.device}`, 0, y + height / 2, labelWidth - 8);
    const runs = runningOn(lane), ended = lane.bars.at(-1)?.end ?? 0;
    if (runs && runs.begin < end && ended < end) {  // else bars say what it has done
      c.globalAlpha = 0.4, c.fillStyle = color(runs.session);
      const from = Math.max(runs.begin, ended, begin);
      c.fillRect(labelWidth + (from - begin) * scale, y + 1, (end - from) * scale, height - 2);
      c.globalAlpha = 1;
    }
    for (const bar of lane.bars) {
      if (bar.end <= begin || bar.begin >= end) continue;
      const from = Math.max(bar.begin, begin), to = Math.min(bar.end, end);
      if (to > known) {
        const share = shares.get(bar.session) ?? { ms: 0, runs: 0 };
        share.ms += to - Math.max(from, known), share.runs += bar.runs;
        shares.set(bar.session, share);
      }
      const x = labelWidth + (from - begin) * scale, w = (to - from) * scale;
      c.fillStyle = color(bar.session);
      c.fillRect(x, y + 1, w > 3 ? w - 0.5 : Math.max(w, 0.5), height - 2);
    }
  });
  c.fillStyle = style.color;
  for (let i = 0; i <= 4; i++) {
    const before = seconds * (4 - i) / 4, text = before ? `−${+before.toPrecision(2)} s` : "";
    c.textAlign = i ? "center" : "left";
    c.fillText(text, labelWidth + (width - labelWidth) * i / 4, all.length * height + axisHeight / 2);
  }
  c.textAlign = "left";
  timeline.drawn = { all, begin, end, scale, height };
  const time = (end - known) * all.length;
  byId("timeline-legend").replaceChildren(...[...shares].sort(([a], [b]) => a - b).map(([session, s]) => {
    const item = make("li"), swatch = make("i", "", "swatch");
    swatch.style.background = color(session);
    item.append(swatch, `${describe(session)}: ${(100 * s.ms / time).toFixed(1)} % of these devices, ` +
      `${s.runs.toLocaleString("en")} computation${s.runs === 1 ? "" : "s"}`);
    return item;
  }));
  const last = Math.min(timeline.first + all.length, timeline.devices), more = timeline.devices > all.length;
  const lost = all.reduce((n, lane) => n + lane.dropped, 0);
  byId("timeline-which").textContent = (more ? `devices ${timeline.first} to ${last - 1} of ${timeline.devices}` : "") +
    (lost ? ` (${lost.toLocaleString("en")} computations of the last second were too many to show)` : "");
  byId("timeline-back").hidden = byId("timeline-on").hidden = !more;
  byId("timeline-back").disabled = timeline.first === 0;
  byId("timeline-on").disabled = last >= timeline.devices;
}

// barAt returns the bar at a place of the picture, and its lane; without a bar, what the device computes, if that is
// drawn there.
function barAt(x, y) {
  const { all, begin, scale, height } = timeline.drawn, lane = all?.[Math.floor(y / height)];
  if (!lane || x < labelWidth) return {};
  const at = begin + (x - labelWidth) / scale, near = 2 / scale;
  let low = 0, high = lane.bars.length;  // the first that ends after it
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.bars[middle].end + near < at) low = middle + 1; else high = middle;
  }
  const bar = lane.bars[low], runs = runningOn(lane);
  if (bar && bar.begin - near <= at) return { lane, bar };
  return { lane, runs: !bar && runs && runs.begin <= at && runs.begin < timeline.drawn.end ? runs : undefined };
}

element.addEventListener("mousemove", event => {
  const { lane, bar, runs } = barAt(event.offsetX, event.offsetY), tip = byId("timeline-tip");
  tip.hidden = !bar && !runs;
  if (runs) tip.replaceChildren(make("b", runs.program), make("span", describe(runs.session)),
    make("span", `on ${lane.worker}/${lane.device} for ${time(runs.since)} so far`));
  if (bar) describeBar(tip, lane, bar);
  tip.style.left = Math.min(event.offsetX + 14, element.clientWidth - tip.offsetWidth - 4) + "px";
  tip.style.top = event.offsetY + 14 + "px";
});

// describeBar says what a bar is.
function describeBar(tip, lane, bar) {
  const took = bar.end - bar.begin, ended = timeline.drawn.end - bar.end;
  tip.replaceChildren(make("b", bar.program ?? "a program of another tenant"),
    make("span", describe(bar.session)), make("span", `${took < 10 ? took.toFixed(3) : took.toFixed(1)} ms on ` +
      `${lane.worker}/${lane.device}` + (bar.runs > 1 ? `, ${bar.runs} computations` : "")),
    make("span", `ended ${(Math.max(ended, 0) / 1e3).toFixed(3)} s before the right edge`));
}
element.addEventListener("mouseleave", () => byId("timeline-tip").hidden = true);
byId("timeline-of").addEventListener("change", () => choose(0));
byId("timeline-span").addEventListener("change", drawTimeline);
byId("timeline-hold").addEventListener("change", drawTimeline);
byId("timeline-back").addEventListener("click", () => choose(Math.max(0, timeline.first - 64)));
byId("timeline-on").addEventListener("click", () => choose(timeline.first + 64));
addEventListener("resize", drawTimeline);

// showTimeline brings the timeline up to a report.
function showTimeline(report) {
  element.closest("section").hidden = report.devices === 0;
  offer(report);
  if (!byId("timeline-hold").checked)
    timeline.running = new Map(workers(report).flatMap(w => w.last.running.flatMap(r => r.devices.map(d =>
      [w.process.number + "/" + d, { session: r.session, program: r.program, since: r.since_ms }]))));
  return followTimeline();
}
