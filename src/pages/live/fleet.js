// The parts that only a controller reports: all updates, and the proxies of the selected one.

let fleet = null; // the controller; null on the page of a proxy
let updates = [];
let rollouts = [];
let isChosen = false;

const nameOf = (update) => `${update.namespace}/${update.name}`;
const pageOf = (update) => `?update=${nameOf(update)}`;
const responding = (answer, all) => `${answer} of ${plural(all, "proxy", "proxies")} ${answer === 1 ? "responds" : "respond"}`;

function role({ role, leader }) {
  if (role === "standby") return leader ? `standby; the leader is ${leader}` : "standby; there is no leader";
  return { leads: "leader", unsure: "was the leader; the API server does not respond", "dry run": "dry run, changes nothing" }[role] ?? role;
}

function drawUpdates(chosen) {
  // With one update, there is nothing to select. The list is open until an update is selected; after that, the user opens or closes it.
  show("updates", updates.length > 1 || !chosen);
  if (chosen && !isChosen) byId("all").open = false;
  isChosen ||= Boolean(chosen);
  setText("h-updates", updates.length ? plural(updates.length, "update") : "No updates");
  const lines = updates.map((update) => {
    const current = chosen && nameOf(update) === nameOf(chosen);
    const link = html("a", { href: pageOf(update), ...(current ? { "aria-current": "page" } : {}) }, nameOf(update));
    const share = known(update.wanted) ? `${percent(update.wanted)} to new` : "";
    return html("li", {}, link, html("span", { class: "phase" }, update.phase ?? "no status yet"), html("span", {}, share), html("p", {}, update.message ?? ""));
  });
  updateChildren(byId("list"), lines);
}

const ROLLOUT_COLUMNS = { phase: "phase", step: "units", old: "old ready", new: "new ready", split: "split", verdict: "verdict", gpus: "GPUs", waits: "waiting for" };

function drawRollouts() {
  show("rollouts", rollouts.length);
  setText("h-rollouts", plural(rollouts.length, "rollout"));
  const column = (name) => html("th", { role: "columnheader", scope: "col" }, name);
  updateChildren(document.querySelector("#rollout-table thead tr"), ["rollout", ...Object.values(ROLLOUT_COLUMNS)].map(column));
  const rows = rollouts.map((rollout) => {
    const intent = known(rollout.undoTo) ? `, to revision ${rollout.undoTo}` : rollout.intent && rollout.intent !== "Run" ? `, ${rollout.intent}` : "";
    const generation = ({ workers }) => workers ?? "–";
    const cells = {
      phase: `${rollout.phase ?? "no status yet"}${intent}`,
      step: known(rollout.next) ? `${rollout.new.units} of ${rollout.units}, next ${rollout.next}` : "–",
      old: generation(rollout.old),
      new: generation(rollout.new),
      split: known(rollout.percent) ? `${rollout.percent}% new` : "–",
      verdict: rollout.verdict ?? "–",
      gpus: known(rollout.gpus) ? `${count(rollout.gpus)}, peak ${count(rollout.peakGpus)}` : "–",
      waits: rollout.waits.join("; ") || (rollout.message ?? "–"),
    };
    const stops = ["Refused", "Contested", "Stalled"].includes(rollout.phase);
    const emphasis = (field) => (stops && field === "phase" ? { class: "stops" } : {});
    const cell = ([field, text]) => html("td", { role: "cell", ...emphasis(field), "data-figure": `rollout.${nameOf(rollout)}.${field}`, "data-name": ROLLOUT_COLUMNS[field] }, text);
    // The update of a rollout has the same name.
    const link = html("a", { href: pageOf(rollout) }, nameOf(rollout));
    return html("tr", { role: "row" }, html("th", { role: "rowheader", scope: "row" }, link), ...Object.entries(cells).map(cell));
  });
  updateChildren(document.querySelector("#rollout-table tbody"), rows);
}

function drawUpdate(update) {
  setText("h-update", nameOf(update));
  setText("phase", update.phase ?? "no status yet");
  setText("message", update.message ?? "no controller has written a status");
  show("standby", fleet.role === "standby");
  const generation = ({ workers, capacityPercent, readyFrontends }) => {
    const parts = [];
    if (known(workers)) parts.push(`${workers} workers`);
    if (known(capacityPercent)) parts.push(`capacity ${capacityPercent}%`);
    if (known(readyFrontends)) parts.push(`${plural(readyFrontends, "frontend")} ready`);
    return parts.join(", ") || "–";
  };
  const facts = [
    ["from old", `${update.source ?? "?"}: ${generation(update.old)}`],
    ["to new", `${update.target ?? update.service ?? "?"}: ${generation(update.new)}`],
    ["edit", count(update.generation)],
  ];
  if (update.weights) facts.push(["weights", `old ${update.weights.old} : new ${update.weights.new}`]);
  if (known(update.cap)) facts.push(["cap", `${update.cap}%${update.capIsLifted ? ", lifted: no worker of old is ready" : ""}`]);
  if (update.paused) facts.push(["paused", "yes: the split is held manually"]);
  if (update.since) facts.push(["phase since", new Date(update.since).toLocaleString("en-GB")]);
  if (known(update.estimatedDrainSeconds)) facts.push(["drains", `about ${duration(update.estimatedDrainSeconds)} more`]);
  if (known(update.safeToDeleteOld)) facts.push(["old can be deleted", update.safeToDeleteOld === "unknown" ? "not known" : update.safeToDeleteOld ? "yes" : "not yet"]);
  updateChildren(byId("facts"), facts.flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]));
}

const COLUMNS = { plan: "plan", phase: "phase", old: "open on old", new: "open on new", observed: "observed share", heard: "last report" };

function drawProxies(update, proxies) {
  const own = proxies?.filter(({ state }) => !state?.follows) ?? [];
  const answer = own.filter((proxy) => proxy.answers).length;
  setText("h-proxies", !proxies ? "Proxies: not discovered yet" : own.length ? `Proxies: ${responding(answer, own.length)}` : "Proxies: none");
  show("proxy-table", proxies?.length);
  const head = [html("th", { role: "columnheader", scope: "col" }, "pod"), ...Object.values(COLUMNS).map((name) => html("th", { role: "columnheader", scope: "col" }, name))];
  updateChildren(document.querySelector("#proxy-table thead tr"), head);
  const rows = (proxies ?? []).map((proxy) => {
    const name = html("th", { role: "rowheader", scope: "row" }, proxy.name);
    const state = proxy.state;
    if (!state) {
      const last = known(proxy.heardSecondsAgo) ? `, last heard ${duration(proxy.heardSecondsAgo)} ago` : "";
      const text = proxy.answers === null ? "has not been queried yet" : `does not respond${last}: ${proxy.silence}`;
      return html("tr", { role: "row", class: "silent" }, name, html("td", { role: "cell", colspan: 6 }, text));
    }
    const missing = update.generation - state.generation;
    const edit = missing > 0 ? `edit ${state.generation}, ${missing} behind` : `edit ${state.generation}`;
    const cells = {
      plan: state.follows ? `of ${state.follows}` : known(state.generation) ? edit : "of no update",
      phase: state.phase === "ready" && !state.ready ? "not ready" : state.phase,
      old: count(state.old),
      new: count(state.new),
      observed: percent(state.observed),
      // A proxy reports once a second: less than three seconds is not late.
      heard: proxy.heardSecondsAgo < 3 ? "now" : `${duration(proxy.heardSecondsAgo)} ago`,
    };
    // On a small screen, a cell is on a separate line, with the name of its column.
    const cell = ([field, text]) => html("td", { role: "cell", "data-figure": `proxy.${proxy.name}.${field}`, "data-name": COLUMNS[field] }, text);
    return html("tr", state.follows ? { role: "row", class: "other" } : { role: "row" }, name, ...Object.entries(cells).map(cell));
  });
  updateChildren(document.querySelector("#proxy-table tbody"), rows);
  return { answer, all: own.length };
}

// Problems of proxies, as text.
function proxyProblems(proxies) {
  const lines = [];
  const silent = (proxies ?? []).filter(({ answers }) => answers === false);
  if (silent.length) {
    const names = silent.map(({ name, silence }) => `${name} (${silence})`);
    lines.push(`${plural(silent.length, "proxy does", "proxies do")} not respond and ${silent.length === 1 ? "is" : "are"} left out of all figures: ${names.join(", ")}`);
  }
  for (const { name, state } of proxies ?? []) {
    if (state?.refusal) lines.push(`${name} could not apply a newer plan: ${state.refusal}`);
    if (state?.moving) lines.push(`${name} moves ${plural(state.moving, "stream")} off old`);
    if (known(state?.sourceLostSeconds)) lines.push(`${name} has not reached the API server for ${duration(state.sourceLostSeconds)}; its last good plan stays in force`);
    for (const remark of state?.remarks ?? []) lines.push(`${name}: ${remark}`);
  }
  return lines;
}
