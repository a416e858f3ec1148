// The present: the split, both sides beside each other, times, saves and the plan.

const SIDES = ["old", "new"];

function drawShares(wanted, observed) {
  for (const [kind, share] of Object.entries({ wanted, observed })) {
    say(`share-${kind}`, percent(share));
    const meter = byId(kind);
    meter.value = share ?? 0;
    meter.setAttribute("aria-valuetext", percent(share));
  }
}

function drawSides(state) {
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
        return more === 0 ? "the same" : `${Math.abs(more)}\u00a0% ${more > 0 ? "slower" : "faster"}`;
      };
      row(quantile, `${key}.${quantile}`, (side) => time(side[key]?.[quantile]), against);
    }
    row("how many", `${key}.count`, (side) => count(side[key]?.count));
  }
  renew(document.querySelector("#sides tbody"), rows);
}

function drawTimes(state, id, key, name) {
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

function drawSaves(state) {
  const sum = (counts) => Object.values(counts).reduce((all, one) => all + one, 0);
  const row = (name, id, number, kind) => html("tr", kind ? { class: kind } : {}, html("th", { scope: "row" }, name), figure(id, count(number)));
  const group = (name, id, counts) => [
    row(name, id, sum(counts), "head"),
    ...Object.entries(counts).map(([cause, number]) => row(words(cause), `${id}.${cause}`, number)),
  ];
  renew(document.querySelector("#saves tbody"), [
    ...group("Requests saved by another place", "saves", state.saves),
    row("Saves that the retry budget did not allow", "retriesRefused", state.retriesRefused, "head"),
    ...group("Requests refused by crossfade", "rejected", state.rejectedRequests),
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
  if (plan.weightsBeforeCap) rows.push(["capped", html("dd", {}, `at ${plan.maxPercent} %; old ${plan.weightsBeforeCap.old} : new ${plan.weightsBeforeCap.new} was asked for`)]);
  if (plan.oldDrains) rows.push(["old", html("dd", {}, "drains: it is no refuge any more")]);
  rows.push(["plans refused", figure("plan.refused", count(plan.refusedTotal), "dd")]);
  renew(byId("plan"), rows.flatMap(([name, value]) => [html("dt", {}, name), value]));
}
