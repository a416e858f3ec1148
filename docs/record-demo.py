#!/usr/bin/env python3
"""Records `crossfade demo` in a terminal of 100 columns as an animated picture (docs/demo.svg).

usage: record-demo.py BINARY OUT.svg

Needs the package pyte. Run it on a machine that does nothing else: what a client notices is in the picture.
"""

import html
import os
import pty
import select
import struct
import sys
import termios
import time
from fcntl import ioctl

import pyte

COLUMNS, ROWS = 100, 34
FRAMES, LAST = 12, 3  # pictures, and for how many of them the last one stays
WIDTH, HEIGHT, MARGIN = 8, 17, 12
# Blocks and lines are drawn, because glyphs leave gaps between cells: a block by its height, in eighths of a cell.
BLOCKS = {block: 8 - number for number, block in enumerate("█▇▆▅▄▃▂▁")}
SHADE = "▓"
# The arms of a line: left, right, up, down.
LINES = {"─": "lr", "│": "ud", "┌": "rd", "┐": "ld", "└": "ru", "┘": "lu"}
DRAWN = {*BLOCKS, SHADE, *LINES}
INK, PAPER = "#d8dee6", "#12161c"
COLORS = {
    "red": "#ff7b72", "green": "#7ee787", "brown": "#e3b341", "yellow": "#e3b341", "blue": "#79c0ff",
    "magenta": "#d2a8ff", "cyan": "#76e3ea", "brightblack": "#8b949e", "black": "#8b949e", "white": "#f0f6fc",
}


def run(program):
    """Yields the screen, as lines of (text, color) runs, about four times a second, and at the end."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        os.environ.pop("NO_COLOR", None)
        os.execv(program, [program, "demo"])
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    due = time.monotonic()
    while True:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                data = os.read(terminal, 65536)
            except OSError:
                data = b""
            if not data:
                break
            # pyte has no alternate screen: what follows it is shown on an empty one.
            before, left, after = data.partition(b"\x1b[?1049l")
            stream.feed(before)
            if left:
                screen.reset()
                stream.feed(after)
        if time.monotonic() >= due:
            due += 0.25
            yield lines(screen)
    os.waitpid(child, 0)
    yield lines(screen)


def hue(name):
    """A color of pyte as one of SVG; None for the default."""
    return COLORS.get(name, f"#{name}" if len(name) == 6 else None)


def lines(screen):
    shown = []
    for row in range(ROWS):
        runs = []
        for column in range(COLUMNS):
            cell = screen.buffer[row][column]
            ink, ground = hue(cell.fg), hue(cell.bg)
            if cell.reverse:
                ink, ground = ground or PAPER, ink or INK
            # Runs of one kind: a drawn cell only with its like.
            kind = (ink, ground, cell.data if cell.data in DRAWN else None)
            if runs and runs[-1][1] == kind:
                runs[-1][0] += cell.data
            else:
                runs.append([cell.data, kind])
        while runs and not runs[-1][0].rstrip() and not runs[-1][1][1]:
            runs.pop()
        shown.append(tuple((text, kind) for text, kind in runs))
    return tuple(shown)


def drawn(text, kind, x, y):
    """The parts of a run that begins at the corner x, y: ("ground", "fill", or "stroke", color, path), or ("text", "", element)."""
    ink, ground, block = kind
    width = len(text) * WIDTH
    box = lambda top: f"M{x} {y + top:g}h{width}v{HEIGHT - top:g}h-{width}z"
    if ground:
        yield "ground", ground, box(0)
    if block in BLOCKS:
        yield "fill", ink, box(HEIGHT * (8 - BLOCKS[block]) / 8)
    elif block == SHADE:
        yield "fill", ink, box(0)
    elif block == "─":
        yield "stroke", ink or INK, f"M{x} {y + HEIGHT / 2:g}h{width}"
    elif block in LINES:
        for cell in range(len(text)):
            left, middle = x + cell * WIDTH + WIDTH / 2, y + HEIGHT / 2
            arms = {"l": f"h-{WIDTH / 2:g}", "r": f"h{WIDTH / 2:g}", "u": f"v-{HEIGHT / 2:g}", "d": f"v{HEIGHT / 2:g}"}
            yield "stroke", ink or INK, "".join(f"M{left:g} {middle:g}{arms[arm]}" for arm in LINES[block])
    elif text.strip():
        words = text.strip(" ")
        x += (len(text) - len(text.lstrip(" "))) * WIDTH
        fill = f' style="fill:{ink}"' if ink else ""
        # The length keeps the columns in place, whatever font there is.
        yield "text", "", (
            f'<text x="{x}" y="{y + 0.8 * HEIGHT:.1f}" textLength="{len(words) * WIDTH}"{fill}>{html.escape(words)}</text>'
        )


def picture(frames):
    """An SVG in which each line appears for as long as it stays the same."""
    count = len(frames) + LAST
    seconds = 1.2 * count
    spans = {}
    for row in range(ROWS):
        begin = 0
        for frame in range(1, len(frames) + 1):
            if frame == len(frames) or frames[frame][row] != frames[begin][row]:
                end = count if frame == len(frames) else frame
                if frames[begin][row]:
                    spans.setdefault((begin, end), []).append((row, frames[begin][row]))
                begin = frame
    width, height = COLUMNS * WIDTH + 2 * MARGIN, ROWS * HEIGHT + 2 * MARGIN
    style, body = [], []
    for begin, end in spans:
        name = f"f{begin}_{end}"
        first, last = (f"{100 * at / count:.3f}%" for at in (begin, end))
        # Without animation, the last picture shows.
        style.append(f".{name}{{visibility:{'visible' if end == count else 'hidden'}}}")
        if (begin, end) != (0, count):
            steps = f"0%{{visibility:{'hidden' if begin else 'visible'}}}"
            steps += f"{first}{{visibility:visible}}" if begin else ""
            steps += f"{last}{{visibility:hidden}}100%{{visibility:hidden}}" if end != count else "100%{visibility:visible}"
            style.append(f"@keyframes {name}{{{steps}}}")
            style.append(f"@media(prefers-reduced-motion:no-preference){{.{name}{{animation:{name} {seconds}s steps(1) infinite}}}}")
    for (begin, end), rows in spans.items():
        body.append(f'<g class="f{begin}_{end}">')
        paths, texts = {}, []
        for row, runs in rows:
            column = 0
            for run, kind in runs:
                for how, color, part in drawn(run, kind, MARGIN + column * WIDTH, MARGIN + row * HEIGHT):
                    if how == "text":
                        texts.append(part)
                    else:
                        paths.setdefault((how, color), []).append(part)
                column += len(run)
        # The grounds come first, so that what stands on them is seen.
        for (how, color), parts in sorted(paths.items(), key=lambda item: item[0][0] != "ground"):
            body.append(f'<path {how.replace("ground", "fill")}="{color}" d="{"".join(parts)}"/>')
        body.extend(texts)
        body.append("</g>")
    label = "crossfade demo in a terminal: the split rises from 0 to 100% under load, and streams continue when an upstream is killed"
    font = '13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{label}">\n<style>text{{white-space:pre;font:{font};fill:{INK}}}{"".join(style)}</style>\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    seen = list(run(sys.argv[1]))
    step = (len(seen) - 1) / (FRAMES - 1)
    frames = [seen[round(number * step)] for number in range(FRAMES)]
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(picture(frames))
    print("\n".join("".join(run for run, _ in line).rstrip() for line in seen[-1]))


if __name__ == "__main__":
    main()
