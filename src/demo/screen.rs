//! The terminal in full-screen mode. It is always restored.

use std::io;
use std::time::Duration;

use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::{DefaultTerminal, Frame};

/// A terminal in full-screen mode. Dropping it restores the terminal. So does a panic, through a hook of ratatui.
#[derive(Debug)]
pub(super) struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    /// Switches the terminal of this process to full-screen mode.
    ///
    /// # Errors
    /// The error of the terminal.
    pub(super) fn take() -> io::Result<Self> {
        match ratatui::try_init() {
            Ok(terminal) => Ok(Self { terminal }),
            Err(error) => {
                // It may have been half set up.
                let _ = ratatui::try_restore();
                Err(error)
            }
        }
    }

    /// False once a panic on another thread has restored the terminal to be readable.
    pub(super) fn is_ours(&self) -> bool {
        crossterm::terminal::is_raw_mode_enabled().unwrap_or(false)
    }

    /// Draws one frame.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw).map(drop)
    }

    /// Whether q, Esc or Ctrl-C has been pressed since the last call. Does not wait.
    pub(super) fn quit_pressed() -> io::Result<bool> {
        while event::poll(Duration::ZERO)? {
            if let Event::Key(key) = event::read()?
                && key.is_press()
                && means_quit(key)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.is_ours() {
            // If this fails, there is no terminal left.
            let _ = ratatui::try_restore();
        }
    }
}

fn means_quit(key: KeyEvent) -> bool {
    match key.code {
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => true,
        KeyCode::Char('c') => key.modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q_escape_and_control_c_quit_and_other_keys_do_not() {
        let quits = |code, modifiers| means_quit(KeyEvent::new(code, modifiers));
        assert!(quits(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(quits(KeyCode::Esc, KeyModifiers::NONE));
        assert!(quits(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!quits(KeyCode::Char('c'), KeyModifiers::NONE));
        assert!(!quits(KeyCode::Enter, KeyModifiers::NONE));
    }
}
