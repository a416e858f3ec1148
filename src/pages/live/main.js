// Renders the events of `live`, each time from the last state and the samples of the last minutes.

const SILENCE = 10_000; // a stream without events for this long counts as lost

let told = null; // the last event
let heard = 0;
let source = null;
let refused = false;

function connect() {
  source?.close();
  heard = Date.now();
  source = new EventSource(`live${location.search}`);
  source.onmessage = (event) => {
    heard = Date.now();
    take(JSON.parse(event.data));
    link("live", "live");
    refused = false;
    show("refusal", false);
  };
  // The browser reconnects by itself, except after a response that is not a stream: see below.
  source.onerror = () => {
    link("lost", "connection lost, reconnecting");
    if (source.readyState === EventSource.CLOSED) explain(source.url);
  };
}

setInterval(() => {
  const silent = Date.now() - heard;
  const patience = source.readyState !== EventSource.CLOSED ? SILENCE : refused ? 5000 : 1000;
  if (silent > patience) {
    link("lost", "connection lost, reconnecting");
    connect();
  }
}, 1000);

// An event source does not report why it was rejected, so another request finds out.
async function explain(url) {
  const stop = new AbortController();
  try {
    const answer = await fetch(url, { signal: stop.signal });
    if (answer.ok) return;
    say("why", (await answer.text()).trim());
    refused = true;
    show("refusal", true);
    link("lost", "refused, retrying");
  } catch {
    // Unreachable, which is already shown.
  } finally {
    stop.abort();
  }
}

function link(kind, words) {
  byId("link").className = kind;
  say("link", words);
}

function take(telling) {
  const started = (it) => (it?.controller ?? it?.state?.process)?.started;
  if (started(telling) && started(telling) !== started(told)) starts.push(Date.parse(started(telling)));
  told = telling;
  fleet = told.controller ?? null;
  updates = told.updates ?? updates;
  rollouts = told.rollouts ?? rollouts;
  remember(told.samples ?? []);
  show("main", true);
  draw();
}

function draw() {
  if (!told || document.hidden) return;
  const { state, update, proxies } = told;
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
    alerts = complaints(proxies);
  } else {
    drawHead(state);
    alerts = concerns(state.plan);
  }
  show("alert", alerts.length);
  renew(byId("alert"), alerts.map((text) => html("p", {}, text)));
  drawStanding(state?.standing);
  say("note", "All exchanges since the process started.");
  if (update) {
    drawUpdate(update);
    const { answer } = drawProxies(update, proxies);
    say("note", `Totals of the ${plural(answer, "proxy", "proxies")} that ${answer === 1 ? "responds" : "respond"}, since each of them started. Addresses are those of the proxy with the fewest healthy ones.`);
  }
  drawShares(update ? update.wanted : state?.split.wanted, state?.split.observed);
  drawPast();
  drawLog();
  if (!state) return;
  drawSides(state);
  drawTimes(state, "chart-first", "firstEvent", "Time to the first token");
  drawTimes(state, "chart-gap", "gap", "Gaps between tokens");
  drawRecovered(state);
  if (!fleet) drawPlan(state.plan);
}

function drawHead({ process, phase, ready, plan }) {
  const serves = phase === "ready" && !ready ? "not ready: cannot reach any model server" : phase;
  say("who", `${process?.name ?? "?"} · ${serves} · version ${process?.version ?? "?"} · up ${lasting(process?.uptimeSeconds ?? 0)}`);
  document.title = `${plan?.percent ?? "?"} % new · crossfade`;
}

function drawFleetHead(update) {
  say("who", `controller ${fleet.name} · ${role(fleet)} · version ${fleet.version} · up ${lasting(fleet.uptimeSeconds)}`);
  document.title = update ? `${percent(update.wanted)} new · ${nameOf(update)} · crossfade` : "updates · crossfade";
}

// Problems of a proxy's plan, as text.
function concerns(plan) {
  const told = [];
  const refusal = plan?.refusal;
  if (refusal) {
    const problems = refusal.problems.map((problem) => [problem.path, problem.message].filter(Boolean).join(": "));
    told.push(`A newer plan was rejected at ${clock(Date.parse(refusal.time))} (${refusal.source}): ${problems.join("; ")}`);
  }
  if (known(plan?.sourceLostSeconds)) told.push("The plan source cannot be reached; the last good plan stays in force.");
  told.push(...(plan?.remarks ?? []));
  return told;
}

byId("moment").addEventListener("input", (event) => {
  const index = Number(event.target.value);
  choose(index === samples.length - 1 ? null : samples[index].at);
});
document.addEventListener("visibilitychange", draw);
addEventListener("resize", draw);
connect();
