// Renders the events of `live`, each time from the last state and the samples of the last minutes.

const LOST_AFTER = 10_000; // a stream without events for this long counts as lost

let latest = null; // the last event
let lastEventAt = 0;
let source = null;
let isRejected = false;

function connect() {
  source?.close();
  lastEventAt = Date.now();
  source = new EventSource(`live${location.search}`);
  source.onmessage = (event) => {
    lastEventAt = Date.now();
    receive(JSON.parse(event.data));
    showConnection("live", "live");
    isRejected = false;
    show("refusal", false);
  };
  // The browser reconnects by itself, except after a response that is not a stream: see below.
  source.onerror = () => {
    showConnection("lost", "connection lost, reconnecting");
    if (source.readyState === EventSource.CLOSED) showRejection(source.url);
  };
}

setInterval(() => {
  const silent = Date.now() - lastEventAt;
  const limit = source.readyState !== EventSource.CLOSED ? LOST_AFTER : isRejected ? 5000 : 1000;
  if (silent > limit) {
    showConnection("lost", "connection lost, reconnecting");
    connect();
  }
}, 1000);

// An event source does not report why it was rejected, so another request finds out.
async function showRejection(url) {
  const stop = new AbortController();
  try {
    const answer = await fetch(url, { signal: stop.signal });
    if (answer.ok) return;
    setText("why", (await answer.text()).trim());
    isRejected = true;
    show("refusal", true);
    showConnection("lost", "rejected, retrying");
  } catch {
    // Unreachable, which is already shown.
  } finally {
    stop.abort();
  }
}

function showConnection(kind, text) {
  byId("link").className = kind;
  setText("link", text);
}

function receive(event) {
  const started = (it) => (it?.controller ?? it?.state?.process)?.started;
  if (started(event) && started(event) !== started(latest)) starts.push(Date.parse(started(event)));
  latest = event;
  fleet = latest.controller ?? null;
  updates = latest.updates ?? updates;
  rollouts = latest.rollouts ?? rollouts;
  addSamples(latest.samples ?? []);
  show("main", true);
  draw();
}

function draw() {
  if (!latest || document.hidden) return;
  const { state, update, proxies } = latest;
  show("of-proxy", !fleet);
  for (const section of document.querySelectorAll("[data-needs]")) {
    const is = { proxy: state && !fleet, state, samples: samples.length && (update || !fleet), update }[section.dataset.needs];
    section.hidden = !is;
  }
  let alerts;
  if (fleet) {
    drawFleetHead(update);
    drawUpdates(update);
    drawRollouts();
    alerts = proxyProblems(proxies);
  } else {
    drawHead(state);
    alerts = planProblems(state.plan);
  }
  show("alert", alerts.length);
  updateChildren(byId("alert"), alerts.map((text) => html("p", {}, text)));
  drawAssessment(state?.assessment);
  setText("note", "All exchanges since the process started.");
  if (update) {
    drawUpdate(update);
    const { answer } = drawProxies(update, proxies);
    setText("note", `Totals of the ${plural(answer, "proxy", "proxies")} that ${answer === 1 ? "responds" : "respond"}, since each of them started. Addresses are those of the proxy with the fewest healthy ones.`);
  }
  drawShares(update ? update.wanted : state?.split.wanted, state?.split.observed);
  drawHistory();
  drawLog();
  if (!state) return;
  drawGenerations(state);
  drawTimes(state, "chart-first", "firstEvent", "Time to the first token");
  drawTimes(state, "chart-gap", "gap", "Gaps between tokens");
  drawRecovered(state);
  if (!fleet) drawPlan(state.plan);
}

function drawHead({ process, phase, ready, plan }) {
  const serves = phase === "ready" && !ready ? "not ready: cannot reach any model server" : phase;
  setText("who", `${process?.name ?? "?"} · ${serves} · version ${process?.version ?? "?"} · up ${duration(process?.uptimeSeconds ?? 0)}`);
  document.title = `${plan?.percent ?? "?"}% new · crossfade`;
}

function drawFleetHead(update) {
  setText("who", `controller ${fleet.name} · ${role(fleet)} · version ${fleet.version} · up ${duration(fleet.uptimeSeconds)}`);
  document.title = update ? `${percent(update.wanted)} new · ${nameOf(update)} · crossfade` : "updates · crossfade";
}

// Problems of a proxy's plan, as text.
function planProblems(plan) {
  const lines = [];
  const refusal = plan?.refusal;
  if (refusal) {
    const problems = refusal.problems.map((problem) => [problem.path, problem.message].filter(Boolean).join(": "));
    lines.push(`The newest plan could not be applied at ${clock(Date.parse(refusal.time))} (${refusal.source}): ${problems.join("; ")}`);
  }
  if (known(plan?.sourceLostSeconds)) lines.push("The plan source cannot be reached; the last good plan stays in force.");
  lines.push(...(plan?.remarks ?? []));
  return lines;
}

byId("time").addEventListener("input", (event) => {
  const index = Number(event.target.value);
  choose(index === samples.length - 1 ? null : samples[index].at);
});
document.addEventListener("visibilitychange", draw);
addEventListener("resize", draw);
connect();
