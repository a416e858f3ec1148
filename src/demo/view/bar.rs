//! A split as one bar: old from the left, new from the right, in colour, letters and figures.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

use super::{NEW, OLD};
use crate::demo::frame::percent;

/// Columns besides the bar itself: name, both letters, figure.
const NAME: usize = 10;
const FIGURE: usize = 8;

/// The share of the new generation.
pub(super) struct SplitBar {
    pub(super) name: &'static str,
    /// 0 to 1; `None` without data.
    pub(super) share: Option<f64>,
}

impl Widget for SplitBar {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let width = usize::from(area.width).saturating_sub(NAME + FIGURE + 5);
        let (old, new) = self.share.map_or((0, 0), |share| {
            let new = columns(share, width);
            (width - new, new)
        });
        for row in area.rows() {
            let first = row.y == area.y;
            let text = |text: String| {
                if first {
                    text
                } else {
                    " ".repeat(text.chars().count())
                }
            };
            let name = text(format!(" {:<1$}", self.name, NAME - 1));
            Line::from(vec![
                Span::styled(name, Style::new().bold()),
                Span::styled(text("O ".to_owned()), OLD).bold(),
                Span::styled("▓".repeat(old), OLD),
                Span::styled("█".repeat(new), NEW),
                Span::raw(" ".repeat(width - old - new)),
                Span::styled(text(" N".to_owned()), NEW).bold(),
                Span::styled(
                    text(format!("{:>1$}", percent(self.share), FIGURE)),
                    Style::new().bold(),
                ),
            ])
            .render(row, buffer);
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a number of columns"
)]
fn columns(share: f64, width: usize) -> usize {
    (share.clamp(0.0, 1.0) * width as f64).round() as usize
}
