//! The arguments of `crossfade proxy` for continuing streams on another server.

use clap::Args;
use clap::builder::BoolishValueParser;

use crate::cli::parse::{move_after, size, whole};
use crate::resource::{ContinuationMode, DynamoUpdateConfigSpec};

/// Upper bound of `--continuation-max-text-bytes`, as in a plan file.
const MAX_TEXT_BYTES: u64 = 1 << 26;

/// The fields `failover.continuation` and `drain` of a plan file.
#[derive(Debug, Args)]
#[command(next_help_heading = "Continuation (not with a plan file or a cluster, which set these)")]
pub(super) struct ContinuationArgs {
    /// Which frontends may continue a stream that breaks after its first content [default: off]
    #[arg(
        long,
        env = "CROSSFADE_CONTINUATION",
        value_name = "MODE",
        conflicts_with_all = ["plan", "kube"]
    )]
    pub(super) continuation: Option<ContinuationMode>,
    /// Maximum amount of generated text that is kept per stream for continuation, in bytes [default: 262144]
    #[arg(
        long,
        env = "CROSSFADE_CONTINUATION_MAX_TEXT_BYTES",
        value_name = "N",
        value_parser = size::<u64>(1024..=MAX_TEXT_BYTES),
        conflicts_with_all = ["plan", "kube"]
    )]
    pub(super) continuation_max_text_bytes: Option<u64>,
    /// How many times one stream may be continued [default: 2]
    #[arg(
        long,
        env = "CROSSFADE_CONTINUATION_MAX_PER_STREAM",
        value_name = "N",
        value_parser = whole::<u32>(1..=100),
        conflicts_with_all = ["plan", "kube"]
    )]
    pub(super) continuation_max_per_stream: Option<u32>,
    /// Do not insert an SSE comment into a stream where another server takes over
    #[arg(long, env = "CROSSFADE_NO_CONTINUATION_COMMENT", conflicts_with_all = ["plan", "kube"], value_parser = BoolishValueParser::new())]
    pub(super) no_continuation_comment: bool,
    /// Time after which open streams are moved off old once all requests go to new; needs --continuation any-generation [default:
    /// never]
    #[arg(
        long,
        env = "CROSSFADE_MOVE_AFTER",
        value_name = "DURATION",
        value_parser = move_after,
        conflicts_with_all = ["plan", "kube"]
    )]
    pub(super) move_after: Option<f64>,
    /// Maximum number of streams that are moved off old per second [default: 10]
    #[arg(
        long,
        env = "CROSSFADE_MOVE_RATE",
        value_name = "N",
        value_parser = whole::<u32>(1..=10_000),
        conflicts_with_all = ["plan", "kube"]
    )]
    pub(super) move_rate: Option<u32>,
}

impl ContinuationArgs {
    /// Whether streams may be moved to the other generation.
    pub(super) fn may_move(&self) -> bool {
        self.continuation == Some(ContinuationMode::AnyGeneration)
    }

    /// Sets the fields that are given.
    pub(super) fn apply(&self, spec: &mut DynamoUpdateConfigSpec) {
        let continuation = &mut spec.failover.continuation;
        continuation.mode = self.continuation.unwrap_or_default();
        continuation.comment = !self.no_continuation_comment;
        if let Some(bytes) = self.continuation_max_text_bytes {
            continuation.max_text_bytes = bytes;
        }
        if let Some(count) = self.continuation_max_per_stream {
            continuation.max_per_stream = count;
        }
        spec.drain.move_after_seconds = self.move_after;
        if let Some(rate) = self.move_rate {
            spec.drain.move_rate = rate;
        }
    }
}
