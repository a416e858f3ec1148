//! Continuation: when a stream breaks after its first content, another model server continues it, and the client sees a single
//! response.
//!
//! Pure: decides whether a stream can be continued, builds the request to the other server, and joins its response to the text
//! that the client has. All JSON is edited in place: unknown fields and the order of fields stay as they were.

mod blocks;
mod capability;
mod choices;
mod chunk;
mod event;
mod json;
mod messages;
mod request;
mod sent;
mod text;

#[cfg(test)]
mod tests;

pub use capability::{Capability, Probe};
pub use request::Request;
pub use sent::{JoinAction, Resumption, Rewritten, Sent};

/// Where a broken stream may be continued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nowhere.
    #[default]
    Off,
    /// On its own generation.
    SameGeneration,
    /// On its own generation, else on the other one.
    AnyGeneration,
}

/// What the plan allows: the mode and its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContinuationPolicy {
    pub mode: Mode,
    /// How much text of a stream is kept, in bytes. A longer one is not continued.
    pub max_text_bytes: usize,
    /// How many times one stream is continued.
    pub max_per_stream: u32,
    /// Whether a comment marks the place where a stream is continued.
    pub comment: bool,
}

impl ContinuationPolicy {
    /// Whether any stream is continued.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.mode != Mode::Off
    }
}

impl Default for ContinuationPolicy {
    fn default() -> Self {
        Self {
            mode: Mode::Off,
            max_text_bytes: 256 * 1024,
            max_per_stream: 2,
            comment: true,
        }
    }
}

/// Why a stream is continued. A closed set: metric label and log field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContinuationCause {
    /// The connection broke.
    Connection,
    /// The stream ended without its terminal event.
    Truncated,
    /// No data arrived for longer than the gap timeout.
    GapTimeout,
    /// An event said that the server went away.
    ErrorEvent,
    /// The plan moves the stream to the new generation.
    PlannedMove,
}

impl ContinuationCause {
    /// Every cause, in declaration order.
    pub const ALL: [Self; 5] = [
        Self::Connection,
        Self::Truncated,
        Self::GapTimeout,
        Self::ErrorEvent,
        Self::PlannedMove,
    ];

    /// The name in metrics, logs and the comment in the stream.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Truncated => "truncated",
            Self::GapTimeout => "gap_timeout",
            Self::ErrorEvent => "error_event",
            Self::PlannedMove => "planned_move",
        }
    }
}

/// The outcome for a stream that should be continued. A closed set: metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContinuationOutcome {
    /// Another server continues it.
    Continued,
    /// It ended.
    Ended,
    /// It stays where it is: a planned move failed.
    Stayed,
}

impl ContinuationOutcome {
    /// Every outcome, in declaration order.
    pub const ALL: [Self; 3] = [Self::Continued, Self::Ended, Self::Stayed];

    /// The metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Continued => "continued",
            Self::Ended => "ended",
            Self::Stayed => "stayed",
        }
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $label:literal,)+) => {
        /// Why a stream was not continued. A closed set: metric label and log field.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ContinuationReason {
            $($(#[$doc])* $name,)+
        }

        impl ContinuationReason {
            /// Every reason, in declaration order.
            pub const ALL: [Self; [$($label),+].len()] = [$(Self::$name),+];

            /// The name in metrics and logs.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)+
                }
            }
        }
    };
}

reasons! {
    /// The request body was not kept: it is too long, or has not arrived completely.
    BodyNotKept = "body_not_kept",
    /// The request body has a form that is not understood, or names a field twice.
    Request = "request",
    /// The request needs several answers.
    Choices = "choices",
    /// The request or the stream has log probabilities.
    Logprobs = "logprobs",
    /// The request asks to repeat its prompt.
    Echo = "echo",
    /// The request has a suffix, which must follow the answer.
    Suffix = "suffix",
    /// The prompt is not text.
    Prompt = "prompt",
    /// The output must follow a grammar or schema.
    GuidedOutput = "guided_output",
    /// The request demands a tool call.
    ToolChoice = "tool_choice",
    /// Tool calls have begun.
    ToolCalls = "tool_calls",
    /// The answer has audio.
    Audio = "audio",
    /// The stream has content that is not understood.
    Content = "content",
    /// The text is longer than `maxTextBytes`.
    TextTooLong = "text_too_long",
    /// The memory budget has no room for the text.
    NoMemory = "no_memory",
    /// The model had finished.
    Finished = "finished",
    /// The token limit is used up.
    TokensUsedUp = "tokens_used_up",
    /// The stream was continued `maxPerStream` times.
    TooOften = "too_often",
    /// The retry budget denied it.
    RetryBudget = "retry_budget",
    /// No target is left.
    NoTarget = "no_target",
    /// No server is known to support it.
    NotSupported = "not_supported",
    /// The error is about the request.
    RequestError = "request_error",
    /// The other server began to reason again, or the stream is a Messages stream with reasoning.
    Reasoning = "reasoning",
    /// Another proxy of the update forwarded the request here.
    Forwarded = "forwarded",
    /// Every attempt failed.
    AttemptsFailed = "attempts_failed",
}
