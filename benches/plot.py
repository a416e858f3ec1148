#!/usr/bin/env python3
"""Draws the figures of the README from the JSON of the bench, as SVG.

usage: plot.py RESULTS.json DIRECTORY
"""

import json
import pathlib
import statistics
import sys
from html import escape

PEERS = {"crossfade": "#d9480f", "haproxy": "#4c6ef5", "nginx": "#2f9e44", "envoy": "#ae3ec9"}
INK, FAINT = "#868e96", "#adb5bd"  # both readable on white and on black
LEFT, WIDTH, BAR, GAP = 190, 720, 13, 16

# file -> title, unit, rows of (label, workload, metric), are they ratios to HAProxy?
FIGURES = {
    "cpu": ("CPU per event", "× HAProxy, less is better", [
        ("500 streams × 50 events/s", "tokens", "cpu_us_per_event"),
        ("the same over HTTP/2", "tokens-h2", "cpu_us_per_event"),
        ("the same over TLS", "tokens-tls", "cpu_us_per_event"),
        ("flood, 1 event per write", "flood-1", "cpu_us_per_event"),
        ("flood, 16 events per write", "flood-16", "cpu_us_per_event"),
        ("flood of 1, lagging behind", "flood-1-behind", "cpu_us_per_event"),
        ("flood of 16, lagging behind", "flood-16-behind", "cpu_us_per_event"),
    ], True),
    "requests": ("Short requests", "per second of CPU × HAProxy, more is better", [
        ("1 KiB in, 1 KiB out", "short", "requests_per_cpu_second"),
    ], True),
    "latency": ("Added latency of an event", "µs more than without a proxy, less is better", [
        ("500 streams, p50", "tokens", "latency_p50_us"),
        ("500 streams, p99", "tokens", "latency_p99_us"),
        ("new connection, p50", "connect", "first_event_p50_us"),
    ], False),
    "memory": ("Memory of an open stream", "KiB, 9,000 idle streams, less is better", [
        ("resident, per stream", "idle", "memory_kib_per_stream"),
    ], False),
}


def draw(results, title, unit, rows, relative):
    """The SVG of one figure; None if nothing of it was measured."""
    bars = []  # (row label or None, peer, value, low, high)
    for label, workload, metric in rows:
        measured = results["workloads"].get(workload, {}).get("metrics", {}).get(metric)
        if not measured:
            continue
        peers = measured["peers"]
        yardstick = peers["haproxy"]["rounds"] if relative and "haproxy" in peers else None
        floor = 0 if relative else peers.get("direct", {}).get("median", 0)
        for peer in PEERS:
            if peer in peers:
                rounds = peers[peer]["rounds"]
                # Of two rounds of one turn, as the bench's own ratios are.
                values = [a / b for a, b in zip(rounds, yardstick)] if yardstick else [a - floor for a in rounds]
                bars.append((label, peer, statistics.median(values), min(values), max(values)))
                label = None
    if not bars:
        return None
    # One far off would press all others together: its bar is cut, its number tells.
    values = sorted(value for _, _, value, _, _ in bars)
    top = min(values[-1], 4 * values[len(values) // 2]) * 1.05
    scale = (WIDTH - LEFT - 70) / top
    out, y = [], 52
    for label, peer, value, low, high in bars:
        if label:
            y += GAP if out else 0
            out.append(f'<text x="{LEFT - 8}" y="{y + 11}" text-anchor="end">{escape(label)}</text>')
        length = max(min(value, top) * scale, 1)
        out.append(f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2" fill="{PEERS[peer]}"/>')
        ends = [LEFT + max(min(end, top), 0) * scale for end in (low, high)]
        out.append(f'<path d="M{ends[0]:.1f} {y + 6.5}H{ends[1]:.1f}" stroke="{FAINT}" stroke-width="1.5"/>')
        text = f"{value:.2f}" if 0 <= value < 10 else f"{value:.0f}"
        out.append(f'<text x="{max(LEFT + length, ends[1]) + 6:.1f}" y="{y + 11}">{text}</text>')
        y += BAR + 2
    legend, x = [], LEFT
    for peer, colour in PEERS.items():
        if any(bar[1] == peer for bar in bars):
            name = f"{peer} {results['versions'].get(peer, '')}"
            legend.append(f'<rect x="{x}" y="{y + 14}" width="10" height="10" rx="2" fill="{colour}"/>'
                          f'<text x="{x + 15}" y="{y + 23}">{escape(name)}</text>')
            x += 125
    height = y + 36
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="12" fill="{INK}" role="img">'
        f'<title>{escape(title)}</title>'
        f'<text x="{LEFT}" y="20" font-size="15" font-weight="600">{escape(title)}</text>'
        f'<text x="{LEFT}" y="38">{escape(unit)}; line: lowest to highest round</text>'
        + "".join(out + legend) + "</svg>\n"
    )


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip().splitlines()[-1])
    results = json.loads(pathlib.Path(sys.argv[1]).read_text())
    directory = pathlib.Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    for name, figure in FIGURES.items():
        if svg := draw(results, *figure):
            (directory / f"{name}.svg").write_text(svg)
            print(directory / f"{name}.svg")


if __name__ == "__main__":
    main()
