// The present: the assessment, the split, both generations side by side, latencies, totals and the plan.

const GENERATIONS = ["old", "new"];

function drawAssessment(assessment) {
  show("assessment", known(assessment));
  if (!assessment) return;
  byId("assessment").className = `wide ${assessment.level}`;
  setText("assessment", assessment.text);
}

function drawShares(wanted, observed) {
  const recent = meanWanted(60_000);
  for (const [kind, share] of Object.entries({ wanted, recent, observed })) {
    setText(`share-${kind}`, percent(share));
    const meter = byId(kind);
    meter.value = share ?? 0;
    meter.setAttribute("aria-valuetext", percent(share));
  }
}

const FEW = "not enough data";

function drawGenerations(state) {
  const rows = [];
  const row = (name, cells, against = "") => rows.push(html("tr", {}, html("th", { scope: "row" }, name), ...cells, html("td", {}, against)));
  const figures = (id, value) => GENERATIONS.map((generation) => figure(`${generation}.${id}`, state[generation] ? value(state[generation]) : "–"));
  row("open streams", figures("openStreams", (generation) => count(generation.openStreams)));
  row("healthy addresses", figures("endpoints", (generation) => (generation.endpoints?.known ? `${generation.endpoints.healthy} of ${generation.endpoints.known}` : "–")));
  for (const [key, name] of [["lastMinute", "Last minute"], ["lastFiveMinutes", "Last 5 minutes"]]) {
    const windows = GENERATIONS.map((generation) => state[generation]?.[key]);
    if (!windows.some(known)) continue;
    rows.push(html("tr", { class: "head" }, html("th", { scope: "rowgroup", colspan: 4 }, name)));
    const recent = (id, value) => windows.map((window, index) => html("td", { "data-recent": `${GENERATIONS[index]}.${key}.${id}` }, window ? value(window) : "–"));
    row("requests per second", recent("requests", (window) => rate(window.requestsPerSecond)));
    row("errors", recent("errors", (window) => (known(window.errorRatio) ? percent(window.errorRatio) : FEW)));
    for (const [times, what] of [["firstEvent", "first token"], ["gap", "gap between tokens"]]) {
      for (const quantile of ["p50", "p95", "p99"]) {
        const of = (window) => window?.[times]?.[quantile];
        const cells = recent(`${times}.${quantile}`, (window) => (known(of(window)) ? time(of(window)) : FEW));
        row(`${what}, ${quantile}`, cells, compared(...windows.map(of)));
      }
    }
  }
  updateChildren(document.querySelector("#generations tbody"), rows);
  drawTotals(state);
}

const rate = (perSecond) => (known(perSecond) ? perSecond.toFixed(perSecond < 10 ? 2 : 0) : "–");

function compared(old, fresh) {
  if (!old || !fresh) return "";
  const more = Math.round((fresh / old - 1) * 100);
  // Below the resolution of the buckets.
  if (Math.abs(more) < 5) return "about the same";
  return `${Math.abs(more)}% ${more > 0 ? "slower" : "faster"}`;
}

function drawTotals(state) {
  const row = (name, id, value, kind) => html("tr", kind ? { class: kind } : {}, html("th", { scope: "row" }, name), ...GENERATIONS.map((generation) => figure(`${generation}.${id}`, state[generation] ? count(value(state[generation])) : "–")));
  updateChildren(document.querySelector("#totals tbody"), [
    html("tr", { class: "head" }, html("th", {}, "Outcomes"), html("th", { scope: "col" }, "old"), html("th", { scope: "col" }, "new")),
    ...["completed", "truncated", "failed", "cancelled"].map((outcome) => row(outcome, outcome, (generation) => generation.outcomes?.[outcome])),
    row("first tokens measured", "firstEvent.count", (generation) => generation.firstEvent?.count),
    row("gaps measured", "gap.count", (generation) => generation.gap?.count),
  ]);
}

// The scale of `crossfade.v1.Latencies`: the lower bound of a bucket, in seconds.
const PARTS = 32;
function lower(index) {
  if (index < PARTS) return index / PARTS / 1000;
  const doublings = Math.floor(index / PARTS) - 1;
  return ((1 + (index % PARTS) / PARTS) * 2 ** doublings) / 1000;
}

const BARS = 24; // at most, in a latency chart

function drawTimes(state, id, key, name) {
  const box = byId(id);
  const width = Math.max(box.clientWidth, 200);
  const height = 190;
  const reported = GENERATIONS.map((generation) => state[generation]?.lastFiveMinutes?.[key]);
  const used = reported.flatMap((latencies) => latencies?.buckets ?? []);
  if (!used.length) {
    box.replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${name}: nothing yet` }, svg("text", { class: "empty", x: width / 2, y: height / 2, "text-anchor": "middle" }, "nothing yet")));
    return;
  }
  const first = Math.min(...used);
  const together = Math.ceil((Math.max(...used) - first + 1) / BARS);
  const bars = Math.max(3, Math.ceil((Math.max(...used) - first + 1) / together));
  const bound = (place) => lower(first + place * together);
  const parts = reported.map((latencies) => {
    const shares = Array(bars).fill(0);
    latencies?.buckets.forEach((bucket, index) => (shares[Math.floor((bucket - first) / together)] += latencies.counts[index] / latencies.count));
    return shares;
  });
  const [left, top, bottom] = [44, 10, height - 36];
  const step = (width - left) / bars;
  const most = Math.max(...parts.flat());
  const y = (share) => bottom - (share / most) * (bottom - top);
  const children = [];
  for (const share of [0, most / 2, most]) {
    children.push(svg("line", { class: "grid", x1: left, x2: width, y1: y(share), y2: y(share) }), svg("text", { x: left - 6, y: y(share) + 4, "text-anchor": "end" }, `${Math.round(share * 100)}%`));
  }
  const every = Math.ceil(58 / step);
  for (let place = 0; place < bars; place += 1) {
    GENERATIONS.forEach((generation, number) => {
      const share = parts[number][place];
      const bar = svg("rect", { class: `bar-${generation}`, x: left + place * step + step * (0.08 + 0.42 * number), width: step * 0.4, y: y(share), height: bottom - y(share) }, svg("title", {}, `${generation}: ${percent(share)} took ${time(bound(place))} to ${time(bound(place + 1))}`));
      if (share > 0) children.push(bar);
    });
    if (place < bars - 1 && place % every === 0) {
      const at = left + (place + 1) * step;
      // At the right edge, half of a centred text would be cut off.
      const anchor = at + 30 > width ? "end" : "middle";
      children.push(svg("line", { class: "grid", x1: at, x2: at, y1: bottom, y2: bottom + 5 }), svg("text", { x: anchor === "end" ? width : at, y: bottom + 18, "text-anchor": anchor }, time(bound(place + 1))));
    }
  }
  const median = (number) => (known(reported[number]?.p50) ? time(reported[number].p50) : FEW);
  GENERATIONS.forEach((generation, number) => {
    children.push(svg("text", { class: `text-${generation}`, x: left + (number * (width - left)) / 2, y: height - 2 }, `${generation} p50 ${median(number)}`));
  });
  const quantiles = (number) => (known(reported[number]?.p50) ? `half within ${time(reported[number].p50)}, 95% within ${time(reported[number].p95)}, 99% within ${time(reported[number].p99)}` : FEW);
  const label = `${name}, last 5 minutes. ${GENERATIONS.map((generation, number) => `${generation}: ${quantiles(number)}`).join(". ")}`;
  box.replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label }, ...children));
}

function drawRecovered(state) {
  const sum = (counts) => Object.values(counts).reduce((all, one) => all + one, 0);
  const row = (name, id, number, kind) => html("tr", kind ? { class: kind } : {}, html("th", { scope: "row" }, name), figure(id, count(number)));
  const group = (name, id, counts) => [
    row(name, id, sum(counts), "head"),
    ...Object.entries(counts).map(([cause, number]) => row(label(cause), `${id}.${cause}`, number)),
  ];
  const continuations = state.continuations;
  const continues = continuations && (continuations.mode !== "Off" || continuations.total > 0);
  updateChildren(document.querySelector("#recovered tbody"), [
    ...(continues
      ? [
          ...group("Streams continued by another server", "continued", continuations.continued),
          ...group("Streams that could not be continued", "notContinued", continuations.notContinued),
          row("Streams to move off old", "moving", continuations.moving, "head"),
        ]
      : []),
    ...group("Requests recovered by failover", "recovered", state.recoveredRequests),
    row("Retries denied by the retry budget", "retriesRefused", state.retriesRefused, "head"),
    ...group("Requests rejected by crossfade", "rejected", state.rejectedRequests),
  ]);
}

function drawPlan(plan) {
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
  if (plan.weightsBeforeCap) rows.push(["capped", html("dd", {}, `at ${plan.maxPercent}%; old ${plan.weightsBeforeCap.old} : new ${plan.weightsBeforeCap.new} was requested`)]);
  if (plan.oldDrains) rows.push(["old", html("dd", {}, "drains: nothing is retried on it")]);
  rows.push(["plans rejected", figure("plan.refused", count(plan.refusedTotal), "dd")]);
  updateChildren(byId("plan"), rows.flatMap(([name, value]) => [html("dt", {}, name), value]));
}
