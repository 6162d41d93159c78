"use strict";
// The devices of a cluster as a grid: how busy each is, and whose slice it is in. It stands on page.js.

const uses = new Map();  // by worker's number: what its devices had taken, at the last few looks
const useOver = 5;       // looks: workers tell once a second, and not when the page looks

// busyOf returns what part of its time each device of a worker was busy in the last seconds.
function busyOf(worker, uptime) {
  const looks = uses.get(worker.process.number) ?? [], now = { at: uptime, ns: worker.last.device_ns };
  if (looks.at(-1)?.at > uptime) looks.length = 0;  // another controller
  if (looks.at(-1)?.at !== uptime) looks.push(now);  // else it is the same report
  if (looks.length > useOver) looks.shift();
  uses.set(worker.process.number, looks);
  const ms = now.at - looks[0].at;
  return now.ns.map((ns, i) => ms > 0 ? Math.min(1, Math.max(0, (ns - (looks[0].ns[i] ?? 0)) / 1e6 / ms)) : 0);
}

// slicesOf returns whose slices each device is in, by worker's number and device.
function slicesOf(report) {
  const held = new Map();
  for (const s of report.sessions) for (const slice of s.slices) for (const span of slice.devices)
    for (let d = span.local; d < span.local + span.count; d++) {
      const key = span.worker + "/" + d;
      const name = `slice ${slice.slice} of ` + describe(s.session) + (slice.exclusive ? " (exclusive)" : "");
      held.set(key, [...(held.get(key) ?? []), { session: s.session, name }]);
    }
  return held;
}

function showTopology(report) {
  const held = slicesOf(report), names = new Map();  // of slices, with their colors
  byId("topology").replaceChildren(...report.islands.map(island => {
    const box = make("div", undefined, "island");
    box.append(make("h3", `island ${island.name}` + (island.platform ? `, ${island.platform}` : "")));
    const rows = make("div", undefined, "workers");
    box.append(rows);
    for (const w of island.workers) {
      const row = make("div", undefined, "worker"), cells = make("div", undefined, "cells");
      const busy = busyOf(w, report.uptime_ms);
      w.devices.forEach((d, i) => {
        const cell = make("i", "", "cell"), use = busy[i] ?? 0, slices = held.get(w.process.number + "/" + i) ?? [];
        cell.style.setProperty("--use", `${Math.round(100 * use)}%`);
        for (const s of slices) names.set(s.name, color(s.session));
        if (slices.length) cell.style.outlineColor = color(slices[0].session), cell.classList.add("held");
        cell.title = [`${w.process.name}/${i}: ${Math.round(100 * use)} % busy`, ...slices.map(s => s.name)].join("\n");
        cells.append(cell);
      });
      row.append(make("span", w.process.name), cells);
      rows.append(row);
    }
    return box;
  }));
  byId("topology-slices").replaceChildren(...[...names].map(([name, color]) => {
    const item = make("li"), swatch = make("i", "", "swatch outlined");
    swatch.style.borderColor = color;
    item.append(swatch, name);
    return item;
  }));
  byId("topology").closest("section").hidden = report.islands.length === 0;
  const there = new Set(workers(report).map(w => w.process.number));
  for (const number of uses.keys()) if (!there.has(number)) uses.delete(number);
}
