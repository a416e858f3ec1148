//! A share over time as two stacked areas: the old generation above, the new one below.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::Widget;

use super::{NEW, NEW_ON_OLD, OLD};

const EIGHTHS: [&str; 9] = ["▓", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// The share so far; the rest of the time axis stays empty. The last row is the axis.
pub(super) struct Past<'a> {
    /// Length of the axis.
    pub(super) length: Duration,
    /// Points in order, each with the share of the new generation, 0 to 1.
    pub(super) points: &'a mut dyn Iterator<Item = (Duration, Option<f64>)>,
    /// Marked on the axis.
    pub(super) outages: &'a [(Duration, Duration)],
}

impl Past<'_> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number of columns"
    )]
    fn column(&self, at: Duration, width: u16) -> u16 {
        let column = (at.as_secs_f64() / self.length.as_secs_f64() * f64::from(width)) as u16;
        column.min(width.saturating_sub(1))
    }
}

impl Widget for Past<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        if area.height < 2 || area.width == 0 {
            return;
        }
        let plot = Rect {
            height: area.height - 1,
            ..area
        };
        let mut before = None;
        while let Some((at, share)) = self.points.next() {
            let column = self.column(at, area.width);
            let Some(share) = share else {
                before = None;
                continue;
            };
            // A wide view has columns between two points.
            for column in before.map_or(column, |last: u16| column.min(last + 1))..=column {
                pile(area.x + column, share, plot, buffer);
            }
            before = Some(column);
        }
        let axis = area.bottom() - 1;
        buffer.set_stringn(area.x, axis, "0 s", usize::from(area.width), Style::new());
        let end = format!("{} s", self.length.as_secs());
        let x = area
            .right()
            .saturating_sub(u16::try_from(end.len()).unwrap_or(0))
            .max(area.x);
        buffer.set_stringn(x, axis, end, usize::from(area.width), Style::new());
        for (from, to) in self.outages {
            let (from, to) = (self.column(*from, area.width), self.column(*to, area.width));
            for column in from..=to {
                buffer[(area.x + column, axis)].set_char('▲');
            }
            buffer.set_stringn(
                area.x + to + 1,
                axis,
                " killed",
                usize::from(area.width - to - 1),
                Style::new(),
            );
        }
    }
}

/// One column, in eighths of a row.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a number of eighths of rows"
)]
fn pile(x: u16, share: f64, plot: Rect, buffer: &mut Buffer) {
    let eighths = (share.clamp(0.0, 1.0) * f64::from(plot.height) * 8.0).round() as usize;
    for (row, y) in plot.rows().rev().map(|row| row.y).enumerate() {
        let full = eighths.saturating_sub(row * 8).min(8);
        let style = match full {
            0 => OLD,
            8 => NEW,
            _ => NEW_ON_OLD,
        };
        buffer[(x, y)].set_symbol(EIGHTHS[full]).set_style(style);
    }
}
