//! A response at the pace of a model: a pause for the prompt, then token by token.

use std::convert::Infallible;
use std::fmt::Write;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use serde_json::Value;
use tokio::time::Sleep;

use super::completion::Completion;
use crate::demo::transcript::Words;

/// From the request to the first token, in milliseconds.
const FIRST_TOKEN: RangeInclusive<u64> = 120..=300;
/// From one token to the next, in milliseconds.
const GAP: RangeInclusive<u64> = 20..=40;

#[derive(Debug, PartialEq, Eq)]
enum Next {
    Opening,
    Token,
    Closing,
    Nothing,
}

/// A response body of server-sent events.
#[derive(Debug)]
pub(in crate::demo) struct TokenStream {
    answer: Completion,
    words: Words,
    sent: usize,
    next: Next,
    /// When the next token is due.
    due: Pin<Box<Sleep>>,
}

impl TokenStream {
    /// Starts with the pause for the prompt.
    pub(super) fn new(answer: Completion) -> Self {
        let words = answer.words();
        let due = Box::pin(tokio::time::sleep(draw(FIRST_TOKEN)));
        Self {
            answer,
            words,
            sent: 0,
            next: Next::Opening,
            due,
        }
    }

    /// The response in one piece, when its last token is due.
    pub(super) async fn whole(self) -> Value {
        let rest: Duration = (1..self.answer.tokens).map(|_| draw(GAP)).sum();
        self.due.await;
        tokio::time::sleep(rest).await;
        self.answer.whole()
    }
}

impl Body for TokenStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if this.next == Next::Opening {
            this.next = Next::Token;
            if let Some(opening) = this.answer.opening() {
                return frame(events(&[opening]));
            }
        }
        match this.next {
            Next::Opening | Next::Token => {
                ready!(this.due.as_mut().poll(cx));
                let due = this.due.deadline() + draw(GAP);
                this.due.as_mut().reset(due);
                this.sent += 1;
                if this.sent >= this.answer.tokens {
                    this.next = Next::Closing;
                }
                let word = this.words.next().unwrap_or_default();
                frame(events(&[this.answer.token(word)]))
            }
            Next::Closing => {
                this.next = Next::Nothing;
                frame(events(&this.answer.closing()) + "data: [DONE]\n\n")
            }
            Next::Nothing => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.next == Next::Nothing
    }
}

fn draw(milliseconds: RangeInclusive<u64>) -> Duration {
    Duration::from_millis(fastrand::u64(milliseconds))
}

fn events(values: &[Value]) -> String {
    values.iter().fold(String::new(), |mut text, value| {
        // Writing to a string cannot fail.
        let _ = write!(text, "data: {value}\n\n");
        text
    })
}

fn frame(text: String) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
    Poll::Ready(Some(Ok(Frame::data(Bytes::from(text)))))
}
