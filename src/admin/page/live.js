"use strict";
// Draws what `live` tells, each time anew from the last state and the samples of the last minutes.
(() => {
  const SPAN = 300_000; // of the charts, in milliseconds
  const SHORTEST = 60_000;
  const SILENCE = 10_000; // after which a stream that says nothing counts as lost
  const SIDES = ["old", "new"];
  const byId = (id) => document.getElementById(id);

  let state = null;
  let samples = [];
  let chosen = null; // the moment that a person chose; null follows the present
  let starts = []; // when processes started that were seen by this page

  // ---- the stream

  let heard = 0;
  let source = null;

  function connect() {
    source?.close();
    heard = Date.now();
    source = new EventSource("live");
    source.onmessage = (event) => {
      heard = Date.now();
      take(JSON.parse(event.data));
      link("live", "live");
    };
    // A browser tries again by itself, but not after an answer that is no stream: see below.
    source.onerror = () => link("lost", "connection lost, trying again");
  }

  setInterval(() => {
    const silent = Date.now() - heard;
    if (source.readyState === EventSource.CLOSED ? silent > 1000 : silent > SILENCE) {
      link("lost", "connection lost, trying again");
      connect();
    }
  }, 1000);

  function link(kind, words) {
    const element = byId("link");
    element.className = kind;
    if (element.textContent !== words) element.textContent = words;
  }

  function take(told) {
    const started = told.state.process?.started;
    if (started && started !== state?.process?.started) starts.push(Date.parse(started));
    state = told.state;
    const fresh = told.samples;
    if (fresh.length) {
      // A stream that begins tells all samples again.
      const kept = samples.filter((sample) => sample.at < fresh[0].at);
      samples = kept.concat(fresh);
      const first = samples.at(-1).at - SPAN;
      samples = samples.filter((sample) => sample.at >= first);
      starts = starts.filter((at) => at >= first);
    }
    byId("main").hidden = false;
    draw();
  }

  // ---- words

  const count = (number) => (number ?? 0).toLocaleString("en");
  const percent = (share) => (share === null || share === undefined ? "–" : `${(share * 100).toFixed(1)} %`);
  function time(seconds) {
    if (seconds === null || seconds === undefined) return "–";
    const [value, unit] = seconds < 1 ? [seconds * 1000, "ms"] : [seconds, "s"];
    return `${value >= 100 ? value.toFixed(0) : Number(value.toPrecision(3))} ${unit}`;
  }
  const clock = (at) => new Date(at).toLocaleTimeString("en-GB");
  function lasting(seconds) {
    if (seconds < 120) return `${Math.floor(seconds)} s`;
    if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
    return seconds < 172_800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86_400)} days`;
  }
  const words = (name) => name.replaceAll("_", " ");

  // ---- elements

  const SVG = "http://www.w3.org/2000/svg";
  function svg(name, attributes = {}, ...children) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }
  function html(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }
  const figure = (id, text, name = "td") => html(name, { "data-figure": id }, text);

  // ---- the whole picture

  function draw() {
    if (!state || document.hidden) return;
    drawHead();
    drawShares();
    drawPast();
    drawSides();
    drawTimes("chart-first", "firstEvent", "Time to the first token");
    drawTimes("chart-gap", "gap", "Gaps between tokens");
    drawSaves();
    drawPlan();
    drawLog();
  }

  function drawHead() {
    const { process, phase, ready, plan } = state;
    const serves = phase === "ready" && !ready ? "not ready: no model server can be reached" : phase;
    byId("who").textContent = `${process?.name ?? "?"} · ${serves} · version ${process?.version ?? "?"} · up ${lasting(process?.uptimeSeconds ?? 0)}`;
    document.title = `${plan?.percent ?? "?"} % new · crossfade`;
    const refusal = plan?.refusal;
    const lost = plan?.sourceLostSeconds;
    const alerts = [];
    if (refusal) {
      const problems = refusal.problems.map((problem) => [problem.path, problem.message].filter(Boolean).join(": "));
      alerts.push(`A newer plan was refused at ${clock(Date.parse(refusal.time))} (${refusal.source}): ${problems.join("; ")}`);
    }
    if (lost !== null && lost !== undefined) alerts.push("The source of plans is out of reach; the last good plan stays in force.");
    const alert = byId("alert");
    alert.hidden = alerts.length === 0;
    if (alert.textContent !== alerts.join(" ")) alert.textContent = alerts.join(" ");
  }

  function drawShares() {
    for (const kind of ["wanted", "observed"]) {
      const share = state.split[kind];
      document.querySelector(`[data-figure="split.${kind}"]`).textContent = percent(share);
      const meter = byId(kind);
      meter.value = share ?? 0;
      meter.setAttribute("aria-valuetext", percent(share));
    }
  }

  // ---- the last minutes

  const LEFT = 52;
  const RIGHT = 64;

  function drawPast() {
    if (!samples.length) return;
    const width = Math.max(byId("chart-share").clientWidth, 200);
    const end = samples.at(-1).at;
    const begin = Math.max(end - SPAN, Math.min(samples[0].at, end - SHORTEST));
    const x = (at) => LEFT + ((at - begin) / (end - begin)) * (width - LEFT - RIGHT);
    const index = moment();
    const at = x(samples[index].at);
    const frame = (id, height, label, ...children) => {
      const cursor = chosen === null ? [] : [svg("line", { class: "cursor", x1: at, x2: at, y1: 0, y2: height })];
      const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label }, ...children, ...cursor);
      picture.addEventListener("pointermove", (event) => choose(nearest(begin + ((event.offsetX - LEFT) / (width - LEFT - RIGHT)) * (end - begin))));
      picture.addEventListener("pointerleave", () => choose(null));
      byId(id).replaceChildren(picture);
    };
    frame("chart-share", 170, `Share of new: wanted ${percent(samples[index].wanted)}, observed ${percent(samples[index].observed)}`, ...shares(x, width));
    frame("chart-open", 120, `Open streams: old ${samples[index].old}, new ${samples[index].new}`, ...open(x, width));
    frame("chart-events", 92, "Plans, saved requests and broken streams: see the time line below", ...happenings(x, width, begin, end));
    const slider = byId("moment");
    slider.max = samples.length - 1;
    slider.value = index;
    const reading = read(samples[index], samples[index - 1]);
    slider.setAttribute("aria-valuetext", reading);
    byId("reading").textContent = reading;
  }

  function moment() {
    if (chosen === null) return samples.length - 1;
    return Math.max(0, samples.findIndex((sample) => sample.at >= chosen));
  }
  function nearest(at) {
    return samples.reduce((best, sample) => (Math.abs(sample.at - at) < Math.abs(best.at - at) ? sample : best)).at;
  }
  function choose(at) {
    chosen = at;
    drawPast();
  }
  function read(sample, before) {
    const more = (key) => risen(sample, before, key);
    const parts = [`${clock(sample.at)}: wanted ${percent(sample.wanted)}, observed ${percent(sample.observed)} over 5 s`, `open streams old ${sample.old}, new ${sample.new}`];
    if (more("saves")) parts.push(`${more("saves")} saved`);
    if (more("broken")) parts.push(`${more("broken")} truncated or failed`);
    return parts.join("; ");
  }
  // A counter that fell is that of another process.
  const risen = (sample, before, key) => (before && sample[key] > before[key] ? sample[key] - before[key] : 0);

  // The fill of new, told apart from that of old without colour. It stands once in the document, for all pictures.
  const pattern = svg("pattern", { id: "hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, svg("rect", { class: "hatch-ground", width: 7, height: 7 }), svg("line", { class: "hatch-line", x1: 2.5, x2: 2.5, y1: 0, y2: 7 }));
  document.body.append(svg("svg", { width: 0, height: 0, "aria-hidden": "true" }, svg("defs", {}, pattern)));

  function grid(width, marks) {
    return marks.flatMap(([y, label]) => [svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }), svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, label)]);
  }

  // The stretches of samples that `value` knows something of; a restart and a hole end one.
  function stretches(value) {
    const found = [];
    let last = null;
    for (const sample of samples) {
      if (value(sample) === null) {
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
    const parts = grid(width, [[y(0), "0 %"], [y(0.5), "50 %"], [y(1), "100 %"]]);
    for (const stretch of stretches((sample) => sample.observed)) {
      const line = stretch.map((sample) => [x(sample.at), y(sample.observed)]);
      const [from, to] = [line[0][0], line.at(-1)[0]];
      parts.push(svg("path", { class: "area-old", d: `${path(line)}L${to} ${top}L${from} ${top}Z` }));
      parts.push(svg("path", { class: "area-new", d: `${path(line)}L${to} ${bottom}L${from} ${bottom}Z` }));
      parts.push(svg("path", { class: "line-new", d: path(line) }));
    }
    for (const stretch of stretches((sample) => sample.wanted)) {
      const steps = stretch.flatMap((sample, index) => [...(index ? [[x(sample.at), y(stretch[index - 1].wanted)]] : []), [x(sample.at), y(sample.wanted)]]);
      parts.push(svg("path", { class: "wanted", d: path(steps) }));
    }
    const now = samples.at(-1);
    const right = width - RIGHT + 6;
    if (now.observed !== null) {
      parts.push(...labels(right, [[y(now.observed / 2), "new", "text-new", now.observed > 0.04], [y((1 + now.observed) / 2), "old", "text-old", now.observed < 0.96]].filter(([, , , shown]) => shown)));
    }
    return parts;
  }

  // Labels at the end of lines, pushed apart where they would touch.
  function labels(x, wanted) {
    const sorted = wanted.toSorted((one, other) => one[0] - other[0]);
    let lowest = -Infinity;
    return sorted.map(([y, text, kind]) => {
      lowest = Math.max(y, lowest + 15);
      return svg("text", { x, y: lowest + 4, class: kind }, text);
    });
  }

  function ceiling(most) {
    const power = 10 ** Math.floor(Math.log10(Math.max(most, 1)));
    return [1, 2, 4, 5, 8, 10].map((step) => step * power).find((round) => round >= most);
  }

  function open(x, width) {
    const [top, bottom] = [8, 108];
    const most = ceiling(Math.max(2, ...samples.flatMap((sample) => [sample.old, sample.new])));
    const y = (streams) => bottom - (streams / most) * (bottom - top);
    const parts = grid(width, [[y(0), "0"], [y(most / 2), count(most / 2)], [y(most), count(most)]]);
    for (const side of SIDES) {
      for (const stretch of stretches((sample) => sample[side])) {
        parts.push(svg("path", { class: `line-${side}${side === "new" ? " dashed" : ""}`, d: path(stretch.map((sample) => [x(sample.at), y(sample[side])])) }));
      }
    }
    const now = samples.at(-1);
    return parts.concat(labels(width - RIGHT + 6, SIDES.map((side) => [y(now[side]), `${side} ${count(now[side])}`, `text-${side}`])));
  }

  function happenings(x, width, begin, end) {
    const rows = { plan: 16, saved: 40, broken: 64 };
    const parts = Object.entries(rows).flatMap(([name, y]) => [svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, name), svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y + 8, y2: y + 8 })]);
    let free = 0;
    samples.forEach((sample, index) => {
      const before = samples[index - 1];
      const at = x(sample.at);
      if (before && sample.epoch !== before.epoch) {
        parts.push(svg("path", { class: "mark", d: `M${at} ${rows.plan - 2}l5 5l-5 5l-5 -5z` }));
        if (at >= free) {
          parts.push(svg("text", { x: at, y: rows.plan - 6, "text-anchor": "middle" }, `${Math.round(sample.wanted * 100)} %`));
          free = at + 44;
        }
      }
      for (const [key, row] of [["saves", "saved"], ["broken", "broken"]]) {
        const number = risen(sample, before, key);
        const height = Math.min(16, 3 + 2 * number);
        if (number) parts.push(svg("rect", { class: `bar-${key}`, x: at - 2, width: 4, y: rows[row] + 8 - height, height }));
      }
    });
    for (const [at, anchor] of [[begin, "start"], [(begin + end) / 2, "middle"], [end, "end"]]) {
      parts.push(svg("text", { x: x(at), y: 88, "text-anchor": anchor }, clock(at)));
    }
    return parts;
  }

  // ---- old and new

  function drawSides() {
    const rows = [];
    const row = (name, id, value, against = () => "") => {
      const cells = SIDES.map((side) => figure(`${side}.${id}`, state[side] ? value(state[side]) : "–"));
      rows.push(html("tr", {}, html("th", { scope: "row" }, name), ...cells, html("td", {}, against())));
    };
    const head = (name) => rows.push(html("tr", { class: "head" }, html("th", { scope: "rowgroup", colspan: 4 }, name)));
    row("open streams", "openStreams", (side) => count(side.openStreams));
    row("addresses that may be used", "endpoints", (side) => (side.endpoints?.known ? `${side.endpoints.healthy} of ${side.endpoints.known}` : "–"));
    head("How exchanges ended");
    for (const outcome of ["completed", "truncated", "failed", "cancelled"]) {
      row(outcome, outcome, (side) => count(side.outcomes?.[outcome]));
    }
    for (const [key, name] of [["firstEvent", "Time to the first token"], ["gap", "Gaps between tokens"]]) {
      head(name);
      for (const quantile of ["p50", "p95", "p99"]) {
        const of = (side) => state[side]?.[key]?.[quantile];
        const against = () => {
          const [old, fresh] = SIDES.map(of);
          if (!old || !fresh) return "";
          const more = Math.round((fresh / old - 1) * 100);
          return more === 0 ? "the same" : `${Math.abs(more)} % ${more > 0 ? "slower" : "faster"}`;
        };
        row(quantile, `${key}.${quantile}`, (side) => time(side[key]?.[quantile]), against);
      }
      row("how many", `${key}.count`, (side) => count(side[key]?.count));
    }
    document.querySelector("#sides tbody").replaceChildren(...rows);
  }

  // ---- distributions

  function drawTimes(id, key, name) {
    const box = byId(id);
    const width = Math.max(box.clientWidth, 200);
    const height = 190;
    const told = SIDES.map((side) => state[side]?.[key]);
    const bounds = [...(told[0]?.bounds ?? told[1]?.bounds ?? []), Infinity];
    const parts = told.map((histogram) => {
      if (!histogram?.count) return bounds.map(() => 0);
      const counts = [...histogram.cumulativeCounts, histogram.count];
      return counts.map((counted, index) => (counted - (counts[index - 1] ?? 0)) / histogram.count);
    });
    const filled = bounds.map((_, index) => parts.some((part) => part[index] > 0));
    if (!filled.includes(true)) {
      box.replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${name}: nothing yet` }, svg("text", { class: "empty", x: width / 2, y: height / 2, "text-anchor": "middle" }, "nothing yet")));
      return;
    }
    const [first, last] = [Math.max(0, filled.indexOf(true) - 1), Math.min(bounds.length - 1, filled.lastIndexOf(true) + 1)];
    const shown = bounds.slice(first, last + 1);
    const [left, top, bottom] = [44, 10, height - 36];
    const step = (width - left) / shown.length;
    const most = Math.max(...parts.flat());
    const y = (share) => bottom - (share / most) * (bottom - top);
    const children = [];
    for (const share of [0, most / 2, most]) {
      children.push(svg("line", { class: "grid", x1: left, x2: width, y1: y(share), y2: y(share) }), svg("text", { x: left - 6, y: y(share) + 4, "text-anchor": "end" }, `${Math.round(share * 100)} %`));
    }
    const every = Math.ceil(58 / step);
    shown.forEach((bound, place) => {
      const index = first + place;
      const range = bound === Infinity ? `over ${time(bounds[index - 1])}` : `${time(bounds[index - 1] ?? 0)} to ${time(bound)}`;
      SIDES.forEach((side, number) => {
        const share = parts[number][index];
        const bar = svg("rect", { class: `bar-${side}`, x: left + place * step + step * (0.08 + 0.42 * number), width: step * 0.4, y: y(share), height: bottom - y(share) }, svg("title", {}, `${side}: ${percent(share)} took ${range}`));
        if (share > 0) children.push(bar);
      });
      if (bound !== Infinity && place < shown.length - 1 && place % every === 0) {
        const at = left + (place + 1) * step;
        children.push(svg("line", { class: "grid", x1: at, x2: at, y1: bottom, y2: bottom + 5 }), svg("text", { x: at, y: bottom + 18, "text-anchor": "middle" }, time(bound)));
      }
    });
    SIDES.forEach((side, number) => {
      const median = told[number]?.p50;
      children.push(svg("text", { class: `text-${side}`, x: left + (number * (width - left)) / 2, y: height - 2 }, `${side} p50 ${time(median)}`));
    });
    const label = `${name}. ${SIDES.map((side, number) => `${side}: half within ${time(told[number]?.p50)}, 95 % within ${time(told[number]?.p95)}, 99 % within ${time(told[number]?.p99)}`).join(". ")}`;
    box.replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label }, ...children));
  }

  // ---- saves, plan, time line

  function drawSaves() {
    const sum = (counts) => Object.values(counts).reduce((all, one) => all + one, 0);
    const row = (name, id, number, kind) => html("tr", kind ? { class: kind } : {}, html("th", { scope: "row" }, name), figure(id, count(number)));
    const group = (name, id, counts) => [
      row(name, id, sum(counts), "head"),
      ...Object.entries(counts).map(([cause, number]) => row(words(cause), `${id}.${cause}`, number)),
    ];
    document.querySelector("#saves tbody").replaceChildren(
      ...group("Requests saved by another place", "saves", state.saves),
      row("Saves that the retry budget did not allow", "retriesRefused", state.retriesRefused, "head"),
      ...group("Requests refused by crossfade", "rejected", state.rejectedRequests),
    );
  }

  function drawPlan() {
    const plan = state.plan;
    if (!plan) return;
    const rows = [
      ["number", figure("plan.epoch", count(plan.epoch), "dd")],
      ["weights", html("dd", {}, `old ${plan.weights?.old ?? "?"} : new ${plan.weights?.new ?? "?"}`)],
      ["in force since", html("dd", {}, clock(Date.parse(plan.since)))],
      ["source", html("dd", {}, plan.source)],
    ];
    if (plan.resource?.name) {
      const { namespace, name, generation } = plan.resource;
      rows.push(["resource", html("dd", {}, `${namespace ? `${namespace}/` : ""}${name}${generation ? `, generation ${generation}` : ""}`)]);
    }
    if (plan.weightsBeforeCap) rows.push(["capped", html("dd", {}, `at ${plan.maxPercent} %; old ${plan.weightsBeforeCap.old} : new ${plan.weightsBeforeCap.new} was asked for`)]);
    if (plan.oldDrains) rows.push(["old", html("dd", {}, "drains: it is no refuge any more")]);
    rows.push(["plans refused", figure("plan.refused", count(plan.refusedTotal), "dd")]);
    byId("plan").replaceChildren(...rows.flatMap(([name, value]) => [html("dt", {}, name), value]));
  }

  function drawLog() {
    const happened = starts.map((at) => [at, "the process started"]);
    samples.forEach((sample, index) => {
      const before = samples[index - 1];
      if (!before) return;
      if (sample.epoch !== before.epoch) happened.push([sample.at, `plan ${sample.epoch} in force: ${percent(sample.wanted)} to new`]);
      const more = (key) => risen(sample, before, key);
      const plural = (number, one) => `${number} ${one}${number === 1 ? "" : "s"}`;
      if (more("refused")) happened.push([sample.at, `${plural(more("refused"), "plan")} refused`]);
      if (more("saves")) happened.push([sample.at, `${plural(more("saves"), "request")} saved`]);
      if (more("broken")) happened.push([sample.at, `${plural(more("broken"), "stream")} truncated or failed`]);
    });
    const latest = happened.toSorted((one, other) => other[0] - one[0]).slice(0, 20);
    const lines = latest.map(([at, text]) => html("li", {}, html("time", { datetime: new Date(at).toISOString() }, clock(at)), text));
    byId("log").replaceChildren(...(lines.length ? lines : [html("li", {}, "nothing in the last minutes")]));
  }

  // ---- hands

  byId("moment").addEventListener("input", (event) => {
    const index = Number(event.target.value);
    choose(index === samples.length - 1 ? null : samples[index].at);
  });
  document.addEventListener("visibilitychange", draw);
  addEventListener("resize", draw);
  connect();
})();
