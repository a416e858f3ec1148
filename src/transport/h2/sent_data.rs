//! Counts the data in the frames that a connection sends: it uses up the window of the connection (RFC 9113 §6.9).

use super::frame_tracker::{DATA, HEAD, PREFACE};

#[derive(Debug, Default)]
pub struct SentData {
    /// The data so far, in bytes.
    pub bytes: u64,
    head: [u8; HEAD],
    of_head: usize,
    /// Bytes of the current frame's payload that are still to come.
    left: usize,
}

impl SentData {
    /// Follows these bytes, which were sent.
    pub fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.of_head < HEAD {
                let here = bytes.len().min(HEAD - self.of_head);
                self.head[self.of_head..][..here].copy_from_slice(&bytes[..here]);
                self.of_head += here;
                bytes = &bytes[here..];
                if self.of_head < HEAD {
                    return;
                }
                self.begin();
            }
            let here = bytes.len().min(self.left);
            self.left -= here;
            bytes = &bytes[here..];
            if self.left == 0 {
                self.of_head = 0;
            }
        }
    }

    fn begin(&mut self) {
        let [a, b, c, kind, ..] = self.head;
        if self.head == PREFACE[..HEAD] {
            self.left = PREFACE.len() - HEAD;
            return;
        }
        self.left = u32::from_be_bytes([0, a, b, c]) as usize;
        if kind == DATA {
            self.bytes += self.left as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_data_is_counted_in_any_spelling() {
        let frame = |kind, length: u8| {
            let mut frame = vec![0, 0, length, kind, 0, 0, 0, 0, 1];
            frame.resize(HEAD + usize::from(length), 0);
            frame
        };
        let frames = [frame(4, 0), frame(DATA, 0), frame(1, 20), frame(DATA, 200)];
        let bytes = [PREFACE, &frames.concat(), &frame(DATA, 7)].concat();
        for size in 1..bytes.len() {
            let mut sent = SentData::default();
            for part in bytes.chunks(size) {
                sent.pass(part);
            }
            assert_eq!(sent.bytes, 207, "{size}");
        }
    }
}
