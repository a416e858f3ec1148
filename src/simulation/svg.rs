//! A report as a drawing: units, split and GPUs over time, in one SVG file without scripts or fonts.

use std::fmt::Write;

use super::{
    Sample, SimulationEnd, SimulationReport,
    text::{clock, ending},
};
use crate::printable::{counted, thousands};

const WIDTH: f64 = 900.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
/// The height of a panel, and the gap between two.
const PANEL: f64 = 130.0;
const GAP: f64 = 50.0;
const TOP: f64 = 60.0;

/// One line of a panel.
struct Line {
    name: &'static str,
    colour: &'static str,
    dashed: bool,
    value: fn(&Sample) -> f64,
}

const OLD: &str = "#c2410c";
const NEW: &str = "#0369a1";

/// The report as SVG.
#[must_use]
pub fn svg(report: &SimulationReport) -> String {
    let panels: [(&str, &[Line]); 3] = [
        (
            "units: ready (solid) and desired (dashed)",
            &[
                Line {
                    name: "old",
                    colour: OLD,
                    dashed: false,
                    value: |sample| sample.ready.old.into(),
                },
                Line {
                    name: "new",
                    colour: NEW,
                    dashed: false,
                    value: |sample| sample.ready.new.into(),
                },
                Line {
                    name: "",
                    colour: OLD,
                    dashed: true,
                    value: |sample| sample.desired.old.into(),
                },
                Line {
                    name: "",
                    colour: NEW,
                    dashed: true,
                    value: |sample| sample.desired.new.into(),
                },
            ],
        ),
        (
            "requests to new, in percent",
            &[Line {
                name: "",
                colour: NEW,
                dashed: false,
                value: |sample| 100.0 * sample.split.share_of_new(),
            }],
        ),
        (
            "GPUs, including those of terminating pods",
            &[Line {
                name: "",
                colour: "#4d7c0f",
                dashed: false,
                value: |sample| sample.gpus as f64,
            }],
        ),
    ];
    let height = TOP + panels.len() as f64 * (PANEL + GAP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    text(&mut svg, LEFT, 24.0, &headline(report));
    let totals = &report.totals;
    let cost = format!(
        "{:.1} GPU-hours, peak {}, {} moved, {} drained, {} cut",
        totals.gpu_hours,
        counted(totals.gpus_peak, "GPU"),
        counted(totals.streams_moved, "stream"),
        thousands(totals.streams_waited_for),
        thousands(totals.streams_cut)
    );
    text(&mut svg, LEFT, 42.0, &cost);
    for (index, (title, lines)) in panels.iter().enumerate() {
        let top = TOP + index as f64 * (PANEL + GAP) + 16.0;
        panel(&mut svg, report, top, title, lines);
    }
    svg.push_str("</svg>\n");
    svg
}

fn headline(report: &SimulationReport) -> String {
    match &report.ended {
        SimulationEnd::At(progress) => format!(
            "earliest end after {}: {}",
            clock(report.totals.time),
            ending(*progress)
        ),
        SimulationEnd::Never(progress, waits) => {
            format!(
                "never ends ({}); waiting for {}",
                ending(*progress),
                waits.join("; ")
            )
        }
    }
}

fn panel(svg: &mut String, report: &SimulationReport, top: f64, title: &str, lines: &[Line]) {
    let end = report.totals.time.as_secs_f64().max(1.0);
    let values = report
        .samples
        .iter()
        .flat_map(|sample| lines.iter().map(|line| (line.value)(sample)));
    let most = values.fold(1.0, f64::max);
    let x = |seconds: f64| LEFT + seconds / end * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| top + PANEL - value / most * PANEL;
    text(svg, LEFT, top - 6.0, title);
    let mut across = |value: f64| {
        let y = y(value);
        // Writing to a String cannot fail.
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>",
            WIDTH - RIGHT
        );
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#666\">{value:.0}</text>",
            LEFT - 6.0,
            y + 4.0
        );
    };
    across(0.0);
    across(most);
    for quarter in 0..=4 {
        let seconds = end * f64::from(quarter) / 4.0;
        // The last label would not fit at the edge.
        let anchor = if quarter == 4 { "end" } else { "middle" };
        let at = clock(std::time::Duration::from_secs_f64(seconds));
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" fill=\"#666\">{at}</text>",
            x(seconds),
            top + PANEL + 16.0
        );
    }
    for line in lines {
        // Each value applies until the next one.
        let mut path = String::new();
        for sample in &report.samples {
            let (x, y) = (x(sample.at.as_secs_f64()), y((line.value)(sample)));
            let _ = match path.is_empty() {
                true => write!(path, "M{x:.1} {y:.1}"),
                false => write!(path, "H{x:.1}V{y:.1}"),
            };
        }
        let _ = write!(path, "H{:.1}", x(end));
        let dashes = if line.dashed {
            " stroke-dasharray=\"4 3\""
        } else {
            ""
        };
        let colour = line.colour;
        let _ = writeln!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>"
        );
    }
    for (index, line) in lines
        .iter()
        .filter(|line| !line.name.is_empty())
        .enumerate()
    {
        let x = WIDTH - RIGHT - 40.0 * (index as f64 + 1.0);
        let (y, colour, name) = (top - 6.0, line.colour, line.name);
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{y}\" fill=\"{colour}\">{name}</text>"
        );
    }
}

fn text(svg: &mut String, x: f64, y: f64, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\">{text}</text>");
}
