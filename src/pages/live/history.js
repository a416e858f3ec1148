// The last minutes: the split over time, open streams, and events.

const SPAN = 300_000; // of the charts, in milliseconds
const SHORTEST = 60_000;
const LEFT = 68;
const RIGHT = 72;

let samples = [];
let chosen = null; // the time that a person chose; null follows the present
let starts = []; // when processes started that were seen by this page

function addSamples(fresh) {
  if (!fresh.length) return;
  // A new stream sends all samples again.
  const kept = samples.filter((sample) => sample.at < fresh[0].at);
  samples = kept.concat(fresh);
  const first = samples.at(-1).at - SPAN;
  samples = samples.filter((sample) => sample.at >= first);
  starts = starts.filter((at) => at >= first);
}

function drawHistory() {
  if (!samples.length) return;
  const width = Math.max(byId("chart-share").clientWidth, 200);
  const end = samples.at(-1).at;
  const begin = Math.max(end - SPAN, Math.min(samples[0].at, end - SHORTEST));
  const x = (at) => LEFT + ((at - begin) / (end - begin)) * (width - LEFT - RIGHT);
  const index = selectedIndex();
  const now = samples[index];
  const at = x(now.at);
  const frame = (id, height, label, ...children) => {
    const cursor = chosen === null ? [] : [svg("line", { class: "cursor", x1: at, x2: at, y1: 0, y2: height })];
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label }, ...children, ...cursor);
    picture.addEventListener("pointermove", (event) => choose(nearest(begin + ((event.offsetX - LEFT) / (width - LEFT - RIGHT)) * (end - begin))));
    picture.addEventListener("pointerleave", () => choose(null));
    byId(id).replaceChildren(picture);
  };
  frame("chart-share", 170, `Share of new: wanted ${percent(now.wanted)}, observed ${percent(now.observed)}`, ...shares(x, width));
  frame("chart-rate", 120, `Requests per second: old ${rate(perSecond("old", index))}, new ${rate(perSecond("new", index))}`, ...lines(x, width, (generation) => (sample, at) => perSecond(generation, at), rate));
  frame("chart-open", 120, `Open streams: old ${now.old ?? "not known"}, new ${now.new ?? "not known"}`, ...lines(x, width, (generation) => (sample) => sample[generation], count));
  frame("chart-events", 92, "Plans, recovered requests, and broken streams: see the timeline below", ...eventMarks(x, width, begin, end));
  const slider = byId("time");
  slider.max = samples.length - 1;
  slider.value = index;
  const reading = describe(now, samples[index - 1]);
  slider.setAttribute("aria-valuetext", reading);
  setText("reading", reading);
}

function selectedIndex() {
  if (chosen === null) return samples.length - 1;
  return Math.max(0, samples.findIndex((sample) => sample.at >= chosen));
}
function nearest(at) {
  return samples.reduce((best, sample) => (Math.abs(sample.at - at) < Math.abs(best.at - at) ? sample : best)).at;
}
function choose(at) {
  chosen = at;
  drawHistory();
}
function describe(sample, before) {
  const more = (key) => increase(sample, before, key);
  const parts = [`${clock(sample.at)}: wanted ${percent(sample.wanted)}, observed ${percent(sample.observed)} over 5 s`, `open streams old ${sample.old ?? "–"}, new ${sample.new ?? "–"}`];
  if (more("recovered")) parts.push(`${more("recovered")} recovered`);
  if (more("broken")) parts.push(`${more("broken")} truncated or failed`);
  return parts.join("; ");
}
// The desired share during the seconds that the observed share covers: while the split changes, the current one does not apply to them.
function meanWanted(milliseconds) {
  const since = samples.at(-1)?.at - milliseconds;
  const recent = samples.filter((sample) => sample.at > since && known(sample.wanted) && known(sample.observed));
  return recent.length ? recent.reduce((sum, sample) => sum + sample.wanted, 0) / recent.length : null;
}
// A counter that decreased belongs to another process.
const increase = (sample, before, key) => (before && sample[key] > before[key] ? sample[key] - before[key] : 0);

// The fill of new, distinguishable from that of old without colour. Defined once in the document, for all charts.
const pattern = svg("pattern", { id: "hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, svg("rect", { class: "hatch-ground", width: 7, height: 7 }), svg("line", { class: "hatch-line", x1: 2.5, x2: 2.5, y1: 0, y2: 7 }));
document.body.append(svg("svg", { width: 0, height: 0, "aria-hidden": "true" }, svg("defs", {}, pattern)));

function grid(width, marks) {
  return marks.flatMap(([y, label]) => [svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }), svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, label)]);
}

// The runs of samples for which `value` is known; a restart or a gap ends a run.
function runsOf(value) {
  const found = [];
  let last = null;
  for (const sample of samples) {
    if (!known(value(sample))) {
      last = null;
      continue;
    }
    if (!last || sample.at - last.at > 3000) found.push([]);
    found.at(-1).push(sample);
    last = sample;
  }
  return found;
}
const path = (points) => points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

function shares(x, width) {
  const [top, bottom] = [8, 160];
  const y = (share) => bottom - share * (bottom - top);
  const parts = grid(width, [[y(0), "0%"], [y(0.5), "50%"], [y(1), "100%"]]);
  for (const run of runsOf((sample) => sample.observed)) {
    const line = run.map((sample) => [x(sample.at), y(sample.observed)]);
    const [from, to] = [line[0][0], line.at(-1)[0]];
    parts.push(svg("path", { class: "area-old", d: `${path(line)}L${to} ${top}L${from} ${top}Z` }));
    parts.push(svg("path", { class: "area-new", d: `${path(line)}L${to} ${bottom}L${from} ${bottom}Z` }));
    parts.push(svg("path", { class: "line-new", d: path(line) }));
  }
  for (const run of runsOf((sample) => sample.wanted)) {
    const steps = run.flatMap((sample, index) => [...(index ? [[x(sample.at), y(run[index - 1].wanted)]] : []), [x(sample.at), y(sample.wanted)]]);
    parts.push(svg("path", { class: "wanted", d: path(steps) }));
  }
  const now = samples.at(-1);
  const right = width - RIGHT + 6;
  if (known(now.observed)) {
    parts.push(...labels(right, bottom, [[y(now.observed / 2), "new", "text-new", now.observed > 0.04], [y((1 + now.observed) / 2), "old", "text-old", now.observed < 0.96]].filter(([, , , shown]) => shown)));
  }
  return parts;
}

// Labels at the end of lines, moved apart where they would overlap, but not below `bottom`.
function labels(x, bottom, wanted) {
  const sorted = wanted.toSorted((one, other) => one[0] - other[0]);
  const places = [];
  for (const [y] of sorted) places.push(Math.max(y, (places.at(-1) ?? -Infinity) + 15));
  for (let index = places.length - 1, limit = bottom; index >= 0; limit = places[index] - 15, index -= 1) {
    places[index] = Math.min(places[index], limit);
  }
  return sorted.map(([, text, kind], index) => svg("text", { x, y: places[index] + 4, class: kind }, text));
}

function ceiling(most) {
  const power = 10 ** Math.floor(Math.log10(Math.max(most, 1)));
  return [1, 2, 4, 5, 8, 10].map((step) => step * power).find((round) => round >= most);
}

// A line per generation. `of(generation)` returns the value of a sample at its position.
function lines(x, width, of, text) {
  const [top, bottom] = [8, 108];
  const values = GENERATIONS.map((generation) => samples.map(of(generation)));
  const most = ceiling(Math.max(2, ...values.flat().filter(known)));
  const y = (value) => bottom - (value / most) * (bottom - top);
  const parts = grid(width, [[y(0), "0"], [y(most / 2), count(most / 2)], [y(most), count(most)]]);
  GENERATIONS.forEach((generation, number) => {
    const value = new Map(samples.map((sample, index) => [sample, values[number][index]]));
    for (const run of runsOf((sample) => value.get(sample))) {
      parts.push(svg("path", { class: `line-${generation}${generation === "new" ? " dashed" : ""}`, d: path(run.map((sample) => [x(sample.at), y(value.get(sample))])) }));
    }
  });
  const now = GENERATIONS.map((generation, number) => [generation, values[number].at(-1)]).filter(([, value]) => known(value));
  return parts.concat(labels(width - RIGHT + 6, bottom, now.map(([generation, value]) => [y(value), `${generation} ${text(value)}`, `text-${generation}`])));
}

const OVER = 5; // samples, of which there is one a second

// Requests of a generation that ended, per second, over the last samples up to `index`.
function perSecond(generation, index) {
  const key = `${generation}Ended`;
  const [from, to] = [samples[Math.max(0, index - OVER)], samples[index]];
  if (to.at <= from.at || to.at - from.at > 2000 * OVER || !known(from[key]) || !known(to[key])) return null;
  return to[key] < from[key] ? null : ((to[key] - from[key]) * 1000) / (to.at - from.at);
}

function eventMarks(x, width, begin, end) {
  const rows = { plan: 16, recovered: 40, broken: 64 };
  const parts = Object.entries(rows).flatMap(([name, y]) => [svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, name), svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y + 8, y2: y + 8 })]);
  let free = 0;
  samples.forEach((sample, index) => {
    const before = samples[index - 1];
    const at = x(sample.at);
    if (before && sample.plan !== before.plan) {
      parts.push(svg("path", { class: "mark", d: `M${at} ${rows.plan - 2}l5 5l-5 5l-5 -5z` }));
      if (at >= free && known(sample.wanted)) {
        parts.push(svg("text", { x: at, y: rows.plan - 6, "text-anchor": "middle" }, `${Math.round(sample.wanted * 100)}%`));
        free = at + 44;
      }
    }
    for (const [key, row] of [["recovered", "recovered"], ["broken", "broken"]]) {
      const number = increase(sample, before, key);
      const height = Math.min(16, 3 + 2 * number);
      if (number) parts.push(svg("rect", { class: `bar-${key}`, x: at - 2, width: 4, y: rows[row] + 8 - height, height }));
    }
  });
  // Three times of day would overlap on a narrow screen.
  const middle = width - LEFT - RIGHT > 210 ? [[(begin + end) / 2, "middle"]] : [];
  for (const [at, anchor] of [[begin, "start"], ...middle, [end, "end"]]) {
    parts.push(svg("text", { x: x(at), y: 88, "text-anchor": anchor }, clock(at)));
  }
  return parts;
}

function drawLog() {
  const entries = starts.map((at) => ({ at, text: fleet ? "the controller started" : "the process started" }));
  let runs = {}; // of what goes on second after second under one plan, which is one line
  samples.forEach((sample, index) => {
    const before = samples[index - 1];
    if (!before) return;
    const { at } = sample;
    if (sample.plan !== before.plan || sample.phase !== before.phase) runs = {};
    if (sample.plan !== before.plan) entries.push({ at, text: fleet ? `edit ${sample.plan}: ${percent(sample.wanted)} to new requested` : `plan ${sample.plan} in force: ${percent(sample.wanted)} to new` });
    if (sample.phase !== before.phase && sample.phase) entries.push({ at, text: before.phase ? `from ${before.phase} to ${sample.phase}` : sample.phase });
    if (`${sample.proxies}` !== `${before.proxies}`) entries.push({ at, text: responding(...sample.proxies) });
    for (const [key, one, what] of [["refused", "plan", "rejected"], ["recovered", "request", "recovered"], ["broken", "stream", "truncated or failed"]]) {
      const number = increase(sample, before, key);
      if (!number) continue;
      if (!runs[key] || at - runs[key].until > 5000) entries.push((runs[key] = { at, number: 0 }));
      const run = runs[key];
      run.until = at;
      run.number += number;
      const seconds = Math.round((at - run.at) / 1000);
      run.text = `${plural(run.number, one)} ${what}${seconds ? ` within ${seconds} s` : ""}`;
    }
  });
  const latest = entries.toSorted((one, other) => other.at - one.at).slice(0, 20);
  const lines = latest.map(({ at, text }) => html("li", {}, html("time", { datetime: new Date(at).toISOString() }, clock(at)), text));
  updateChildren(byId("log"), lines.length ? lines : [html("li", {}, "no events in the last five minutes")]);
}
