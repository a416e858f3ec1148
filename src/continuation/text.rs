//! The text of a stream, kept in pieces, so that long ones are neither copied as they grow nor reserve much.

use crate::sse::Api;

/// The size of a full piece, in bytes.
const PIECE: usize = 64 * 1024;

/// The minimum growth of the last piece, in bytes.
const STEP: usize = 128;

/// The part of the client's text that another server is given.
///
/// Messages rejects whitespace at the end. Chat templates may drop or keep it, so a line break is left out, and the model
/// generates it again. Spaces are included: tokens rarely end with a space, so the next token would rarely begin with the missing
/// one.
pub fn given(api: Api, text: &str) -> &str {
    let trimmed = text.trim_end();
    match api {
        Api::Messages => trimmed,
        Api::Chat if text[trimmed.len()..].contains(['\n', '\r']) => trimmed,
        _ => text,
    }
}

/// A text that grows.
#[derive(Debug, Default)]
pub struct Text {
    full: Vec<Box<[u8]>>,
    last: Vec<u8>,
}

impl Text {
    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.full.len() * PIECE + self.last.len()
    }

    /// The memory that it holds, in bytes: less than its length plus [`STEP`] plus 16 bytes for each full piece.
    pub fn held(&self) -> usize {
        let pieces = self.full.capacity() * size_of::<Box<[u8]>>();
        self.full.len() * PIECE + self.last.capacity() + pieces
    }

    pub fn push(&mut self, mut text: &[u8]) {
        while !text.is_empty() {
            let room = PIECE - self.last.len();
            let (now, later) = text.split_at(text.len().min(room));
            if self.last.len() + now.len() > self.last.capacity() {
                // In small steps, because thousands of streams keep their text.
                self.last.reserve_exact(now.len().max(STEP).min(room));
            }
            self.last.extend_from_slice(now);
            if self.last.len() == PIECE {
                self.full.reserve_exact(1);
                self.full.push(std::mem::take(&mut self.last).into());
            }
            text = later;
        }
    }

    /// All of it.
    pub fn whole(&self) -> Vec<u8> {
        let mut whole = Vec::with_capacity(self.len());
        for piece in &self.full {
            whole.extend_from_slice(piece);
        }
        whole.extend_from_slice(&self.last);
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_given_without_line_breaks_at_its_end_and_a_prompt_with_them() {
        let text = " a b \u{a0}\r\n\t";
        assert_eq!(given(Api::Chat, text), " a b");
        assert_eq!(given(Api::Chat, " a b "), " a b ");
        assert_eq!(given(Api::Messages, " a b "), " a b");
        assert_eq!(given(Api::Messages, text), " a b");
        assert_eq!(given(Api::Completions, text), text);
        assert_eq!(given(Api::Chat, " \n"), "");
    }

    #[test]
    fn a_text_holds_little_more_than_its_length() {
        for size in [1, 5, 255, 1000, PIECE - 1, PIECE, 3 * PIECE + 7] {
            let (mut text, mut expected) = (Text::default(), Vec::new());
            while expected.len() < 300_000 {
                let piece = vec![u8::try_from(expected.len() % 251).unwrap(); size];
                text.push(&piece);
                expected.extend(piece);
                assert_eq!(text.len(), expected.len());
                let most = text.len() + STEP + 16 * (text.len() / PIECE);
                assert!(text.held() <= most, "{size}: {}", text.held());
            }
            assert_eq!(text.whole(), expected);
        }
        assert!(Text::default().len() == 0 && Text::default().held() == 0);
    }
}
