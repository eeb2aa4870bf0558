"use strict";
// Draws /state.json once a second. Values go in as text and numbers only.

const SVG = "http://www.w3.org/2000/svg";
const HOPS = { FORWARD: "--one", RETURN: "--two", BACKWARD: "--three", INPUT_GRADIENT: "--four", CONTROL: "--dim" };
const MIB = 1048576;
const WIDTH = 520, HEIGHT = 190, LEFT = 46, RIGHT = 8, TOP = 22, BOTTOM = 22;
const byId = (id) => document.getElementById(id);

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function show(value, unit) {
  if (value === null || value === undefined) return "-";
  if (unit === "frames") return `${value.toFixed(0)} frames`;
  return unit === "pp" ? `${value >= 0 ? "+" : ""}${value.toFixed(2)} pp` : value.toFixed(3);
}

// Lines over seconds. Each line: { colour, label, points: [[x, y], ...], dash }. `band`: [[x, low, high], ...].
function chart(place, lines, band = []) {
  const all = lines.flatMap((line) => line.points);
  const picture = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  if (!all.length) {
    picture.append(element("text", { x: LEFT, y: HEIGHT / 2 }, "nothing yet"));
    byId(place).replaceChildren(picture);
    return;
  }
  const xs = all.map((point) => point[0]);
  const ys = [0, ...all.map((point) => point[1])];
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  let [y0, y1] = [Math.min(...ys), Math.max(...ys)];
  if (y1 === y0) y1 = y0 + 1;
  const x = (value) => LEFT + (WIDTH - LEFT - RIGHT) * (x1 === x0 ? 1 : (value - x0) / (x1 - x0));
  // A band may reach far below the lines: it is cut off there.
  const y = (value) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (Math.max(value, y0) - y0) / (y1 - y0);
  picture.append(element("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y(0), y2: y(0) }));
  for (const value of [y0, y1]) {
    picture.append(element("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, value.toPrecision(3)));
  }
  picture.append(element("text", { x: WIDTH - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, `${x1.toFixed(0)} s`));
  if (band.length > 1) {
    const upper = band.map((part) => `${x(part[0])},${y(part[2])}`);
    const lower = band.map((part) => `${x(part[0])},${y(part[1])}`).reverse();
    picture.append(element("polygon", { class: "band", points: [...upper, ...lower].join(" ") }));
  }
  let at = LEFT;
  for (const line of lines) {
    if (!line.points.length) continue;
    const points = line.points.map((point) => `${x(point[0])},${y(point[1])}`).join(" ");
    const style = `stroke: var(${line.colour});${line.dash ? "stroke-dasharray: 4 3" : ""}`;
    picture.append(element("polyline", { class: "curve", points, style, "data-name": line.label }));
    picture.append(element("rect", { x: at, y: 4, width: 10, height: 10, style: `fill: var(${line.colour})` }));
    picture.append(element("text", { x: at + 14, y: 13 }, line.label));
    at += 26 + 6.4 * line.label.length;
  }
  byId(place).replaceChildren(picture);
}

function traffic(state) {
  const lines = Object.entries(HOPS).map(([hop, colour]) => {
    const points = [];
    for (let n = 1; n < state.samples.length; n += 1) {
      const [before, now] = [state.samples[n - 1], state.samples[n]];
      const seconds = now.seconds - before.seconds;
      if (!(hop in now.bytes) || seconds <= 0) continue;
      points.push([now.seconds, (now.bytes[hop] - (before.bytes[hop] || 0)) / MIB / seconds]);
    }
    return { label: hop.toLowerCase().replace("_", " "), colour, points };
  });
  chart("traffic", lines);
}

function gate(state) {
  const points = (name) => state.samples.filter((s) => s[name] !== null).map((s) => [s.seconds, s[name]]);
  const band = state.samples
    .filter((s) => s.effect_pp !== null && s.effect_lower_pp !== null)
    .map((s) => [s.seconds, s.effect_lower_pp, s.effect_pp]);
  chart("gate", [
    { label: "gate", colour: "--one", points: points("gate_pp") },
    { label: "floor", colour: "--dim", points: points("floor_pp"), dash: true },
    { label: "effect and its lower bound", colour: "--three", points: points("effect_pp") },
    { label: "ceiling", colour: "--fail", points: points("ceiling_pp"), dash: true },
  ], band);
}

function support(state) {
  const frames = state.support;
  if (!frames.length) {
    byId("support").textContent = "no gradient yet";
    return;
  }
  const units = Math.max(...frames.map((frame) => frame.nonzero.length));
  const step = Math.max(4, Math.min(14, 1000 / units)), left = 40;
  const picture = element("svg", { viewBox: `0 0 ${left + units * step + 8} ${14 * frames.length + 20}`, role: "img" });
  frames.forEach((frame, row) => {
    picture.append(element("text", { x: left - 6, y: 14 * row + 11, "text-anchor": "end" }, row - frames.length + 1));
    frame.nonzero.forEach((filled, unit) => {
      const kind = !filled ? "empty" : frame.real === null || frame.real[unit] ? "real" : "decoy";
      picture.append(element("rect", {
        class: kind, x: left + unit * step, y: 14 * row + 2, width: step - 1.5, height: 11,
      }));
    });
  });
  const words = frames[0].real === null
    ? "filled: the gradient is not zero"
    : "filled: the gradient is not zero; real units first, then decoys; hollow: exactly zero";
  picture.append(element("text", { x: left, y: 14 * frames.length + 14 }, words));
  byId("support").replaceChildren(picture);
}

function readings(state) {
  byId("readings").replaceChildren(...state.readings.map((reading) => {
    const row = document.createElement("tr");
    row.className = reading.leak ? "leak" : "";
    const evidence = reading.evidence === null ? "" : `${reading.evidence.toFixed(1)} of ${reading.evidence_needed.toFixed(1)}`;
    const cells = [reading.detector, show(reading.value, reading.unit), show(reading.lower, reading.unit),
      show(reading.ceiling, reading.unit), reading.num_groups, evidence];
    row.append(...cells.map((cell) => Object.assign(document.createElement("td"), { textContent: cell })));
    return row;
  }));
}

function banner(state) {
  const leaks = state.leaks.length;
  byId("banner").className = leaks ? "leak" : "quiet";
  byId("headline").textContent = leaks ? "LEAK" : "no leak found so far";
  byId("leaks").replaceChildren(...state.leaks.map((leak) =>
    Object.assign(document.createElement("li"), { textContent: leak })));
  const verdict = state.verdict;
  byId("verdict").textContent = verdict
    ? `last audit: ${verdict.state}, ${new Date(1000 * verdict.written).toLocaleString()}`
    : "no audit is shown here";
  byId("verdict").className = verdict ? verdict.state : "dim";
}

async function refresh() {
  try {
    const answer = await fetch("state.json", { cache: "no-store" });
    const state = await answer.json();
    byId("state").textContent = `${state.state}, ${(state.seconds || 0).toFixed(0)} s`;
    if (state.schema) {
      const counts = Object.entries(state.num_frames).map(([hop, count]) => `${count} ${hop.toLowerCase()}`);
      if (state.skipped) counts.push(`${state.skipped} SKIPPED`);
      if (state.unmatched) counts.push(`${state.unmatched} without truth or other half`);
      if (state.problems) counts.push(`${state.problems} against the contract`);
      byId("counts").textContent = counts.join(", ");
      banner(state);
      traffic(state);
      gate(state);
      support(state);
      readings(state);
    }
  } catch {
    byId("state").textContent = "the watch does not answer";
    byId("banner").className = "";
    byId("headline").textContent = "unknown: the watch does not answer";
  }
  setTimeout(refresh, 1000);
}

refresh();
