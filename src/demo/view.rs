//! The full-screen view of the demo.
//!
//! Blue and orange differ for every kind of colour blindness and on light and dark backgrounds. Letters, shades, and figures
//! convey the same without colour. Everything else uses the terminal's own colours.

mod area;
mod bar;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph};

use super::frame::{DemoFrame, HistoryPoint, milliseconds};
use crate::split::Generation;
use area::Past;
use bar::SplitBar;

/// From the 256-colour palette, for terminals without true colour.
const BLUE: Color = Color::Indexed(32);
const ORANGE: Color = Color::Indexed(166);
const OLD: Style = Style::new().fg(BLUE);
const NEW: Style = Style::new().fg(ORANGE);
const NEW_ON_OLD: Style = Style::new().fg(ORANGE).bg(BLUE);

/// Draws `demo_frame` on all of `frame`.
pub(super) fn draw(frame: &mut Frame<'_>, demo_frame: &DemoFrame<'_>) {
    let bar = if frame.area().height >= 30 { 2 } else { 1 };
    let [
        title,
        caption,
        _,
        wanted,
        observed,
        _,
        past,
        figures,
        clients,
        footer,
    ] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(bar),
        Constraint::Length(bar),
        Constraint::Length(1),
        Constraint::Min(6),
        Constraint::Length(6),
        Constraint::Length(2),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_title(frame, demo_frame, title);
    draw_caption(frame, demo_frame, caption);
    frame.render_widget(
        SplitBar {
            name: "wanted",
            share: Some(demo_frame.sample.wanted),
        },
        wanted,
    );
    frame.render_widget(
        SplitBar {
            name: "observed",
            share: demo_frame.sample.observed,
        },
        observed,
    );
    draw_past(frame, demo_frame, past);
    draw_figures(frame, demo_frame, figures);
    draw_clients(frame, demo_frame, clients);
    let page = demo_frame
        .page
        .map(|page| format!(" · page {page}"))
        .unwrap_or_default();
    frame.render_widget(
        Line::from(format!(" press q or Ctrl-C to quit{page}")).dim(),
        footer,
    );
}

fn draw_title(frame: &mut Frame<'_>, demo_frame: &DemoFrame<'_>, area: Rect) {
    let clock = format!(
        "{} / {} s ",
        demo_frame
            .elapsed
            .as_secs()
            .min(demo_frame.length.as_secs()),
        demo_frame.length.as_secs()
    );
    let title = Line::from(vec![
        " crossfade".bold(),
        format!("  {} clients on {}", demo_frame.streams, demo_frame.address).into(),
    ]);
    frame.render_widget(title, area);
    frame.render_widget(Line::from(clock).bold().alignment(Alignment::Right), area);
}

fn draw_caption(frame: &mut Frame<'_>, demo_frame: &DemoFrame<'_>, area: Rect) {
    let caption = format!(" ▶ {} ", demo_frame.caption());
    let style = if demo_frame.is_outage() {
        Style::new().bold().reversed()
    } else {
        Style::new()
    };
    frame.render_widget(Span::styled(caption, style), area);
}

fn draw_past(frame: &mut Frame<'_>, demo_frame: &DemoFrame<'_>, area: Rect) {
    let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).areas(area);
    draw_share(frame, demo_frame, left, " observed split ", |point| {
        point.observed
    });
    draw_share(
        frame,
        demo_frame,
        right,
        " open streams ",
        HistoryPoint::open_share,
    );
}

fn draw_share(
    frame: &mut Frame<'_>,
    demo_frame: &DemoFrame<'_>,
    area: Rect,
    title: &'static str,
    share: impl Fn(&HistoryPoint) -> Option<f64>,
) {
    let [old, new] = [" O old ".to_owned(), " N new ".to_owned()];
    let block = Block::bordered()
        .title(Line::from(title).bold())
        .title(Line::from(vec![Span::styled(old, OLD), Span::styled(new, NEW)]).right_aligned());
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let mut points = demo_frame
        .history
        .iter()
        .map(|point| (point.at, share(point)));
    let past = Past {
        length: demo_frame.length,
        points: &mut points,
        outages: demo_frame.outages,
    };
    frame.render_widget(past, inside);
}

fn draw_figures(frame: &mut Frame<'_>, demo_frame: &DemoFrame<'_>, area: Rect) {
    let title = Line::from(format!(
        " the proxy, last minute · plan {} ",
        demo_frame.sample.epoch
    ))
    .bold();
    let block = Block::new()
        .borders(Borders::TOP | Borders::BOTTOM)
        .title(title);
    let [groups, heads] = [
        format!(
            "{:7}{:6}{:^19}{:^19}{:^28}",
            "", "", "first token, ms", "gap, ms", "streams that ended"
        ),
        format!(
            "{:7}{:>6}{:>7}{:>6}{:>6}{:>7}{:>6}{:>6}{:>9}{:>7}{:>6}{:>6}",
            "",
            "open",
            "p50",
            "p95",
            "p99",
            "p50",
            "p95",
            "p99",
            "complete",
            "trunc.",
            "fail.",
            "canc."
        ),
    ]
    .map(Line::from);
    let generations = Generation::ALL.map(|generation| {
        let (name, style) = match generation {
            Generation::Old => (" O old ", OLD),
            Generation::New => (" N new ", NEW),
        };
        let index = generation.index();
        let (first, gap) = (&demo_frame.sample.first_event[index], &demo_frame.sample.gap[index]);
        let [f50, f95, f99] = [first.p50, first.p95, first.p99].map(|time| milliseconds(time, 0));
        let [g50, g95, g99] = [gap.p50, gap.p95, gap.p99].map(|time| milliseconds(time, 1));
        let [completed, truncated, failed, cancelled] = demo_frame.sample.outcomes[index];
        let figures = format!(
            "{:>6}{f50:>7}{f95:>6}{f99:>6}{g50:>7}{g95:>6}{g99:>6}{completed:>9}{truncated:>7}{failed:>6}{cancelled:>6}",
            demo_frame.sample.open[index]
        );
        Line::from(vec![Span::styled(name, style).bold(), figures.into()])
    });
    let [old, new] = generations;
    frame.render_widget(
        Paragraph::new(vec![groups, heads, old, new]).block(block),
        area,
    );
}

fn draw_clients(frame: &mut Frame<'_>, demo_frame: &DemoFrame<'_>, area: Rect) {
    let seen = &demo_frame.clients;
    let [old, new] = seen.completed;
    let clients = Line::from(vec![
        " seen by the clients ".bold(),
        format!(" completed {} (", old + new).into(),
        Span::styled(format!("O {old}"), OLD),
        " ".into(),
        Span::styled(format!("N {new}"), NEW),
        format!(
            ")  failed {}  broken {}",
            seen.failed,
            seen.broken + seen.unreachable
        )
        .into(),
    ]);
    let recovery = Line::from(vec![
        " recovered by the proxy  ".bold(),
        format!(" {}", demo_frame.sample.recovered).bold(),
        " requests,  continued ".into(),
        format!("{}", demo_frame.sample.continued).bold(),
        " streams that broke".into(),
    ]);
    frame.render_widget(Paragraph::new(vec![clients, recovery]), area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::demo::frame::tests::{example, history};
    use crate::demo::script::Script;

    fn drawn(width: u16, height: u16) -> Terminal<TestBackend> {
        let outages: Vec<_> = Script::new(60).outages().collect();
        let history = history(outages[0].1);
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal
            .draw(|frame| draw(frame, &example(&history, &outages)))
            .unwrap();
        terminal
    }

    #[test]
    fn eighty_by_twenty_four_shows_every_figure() {
        let text = drawn(80, 24).backend().to_string();
        for figure in [
            "48 clients on 127.0.0.1:8123",
            "KILLED 0.7 s ago",
            "50.0%",
            "48.7%",
            "▲ killed",
            "plan 12",
            "page http://127.0.0.1:9090/",
            "26 / 60 s",
            " 27 ",
            " 16 ",
            " 211 ",
            " 288 ",
            " 297 ",
            " 30.3 ",
            " 42.3 ",
            " 612 ",
            " 233 ",
            " 21 ",
            "completed 845",
            "O 631 N 214",
            "failed 21",
            "broken 0",
            "recovered by the proxy   37 requests,  continued 9 streams",
            "Ctrl-C",
            "0 s",
            "60 s",
        ] {
            assert!(text.contains(figure), "{figure:?} in\n{text}");
        }
    }

    #[test]
    fn the_generations_differ_in_colour_and_without_it() {
        let terminal = drawn(80, 24);
        let cells = &terminal.backend().buffer().content;
        let shown = |symbol, colour| {
            cells
                .iter()
                .any(|cell| cell.symbol() == symbol && cell.fg == colour)
        };
        assert!(shown("▓", BLUE) && shown("█", ORANGE) && shown("O", BLUE) && shown("N", ORANGE));
    }

    #[test]
    fn no_size_of_terminal_is_a_reason_to_panic() {
        for (width, height) in [(1, 1), (3, 40), (20, 5), (79, 23), (200, 3), (300, 100)] {
            drawn(width, height);
        }
    }
}
