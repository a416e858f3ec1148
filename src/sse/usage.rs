//! The token counts that an upstream reports. Few events contain any, so a search without result is cheap.

use std::sync::LazyLock;

use memchr::memmem;
use serde::Deserialize;

use super::Api;

/// Token counts of one exchange, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the request (`prompt_tokens`, `input_tokens`).
    pub prompt_tokens: u64,
    /// Tokens of the answer (`completion_tokens`, `output_tokens`).
    pub completion_tokens: u64,
}

impl Usage {
    /// Takes the maximum of both counts: reports within a stream are cumulative, and each may lack one of the counts.
    pub fn merge(&mut self, other: Self) {
        self.prompt_tokens = self.prompt_tokens.max(other.prompt_tokens);
        self.completion_tokens = self.completion_tokens.max(other.completion_tokens);
    }
}

/// The token counts in the data of an event, if it reports any. If it reports none, this takes a single pass over the bytes.
///
/// Chat and Completions report in the last chunk (`stream_options.include_usage`), Responses in `response.completed`,
/// Messages the request's tokens in `message_start` and the answer's in `message_delta`.
#[must_use]
#[inline]
pub fn usage(api: Api, data: &[u8]) -> Option<Usage> {
    if !may_have_usage(data) {
        return None;
    }
    api.usage(ReportedUsage::parse(data)?)
}

/// The token counts of a response that is a single JSON document, of any family.
#[must_use]
pub fn usage_of_json_body(body: &[u8]) -> Option<Usage> {
    if !may_have_usage(body) {
        return None;
    }
    ReportedUsage::parse(body)?.usage.and_then(Tokens::known)
}

/// Maximum length of a model name, in bytes.
const LONGEST_MODEL: usize = 256;

/// The model that an event or a response names, in any family. The text is not parsed completely: the first field `model` with a
/// string counts, which all families write before anything nested. Generated text cannot match: its quotes are escaped.
#[must_use]
pub fn model(data: &[u8]) -> Option<Box<str>> {
    let name = MODEL_KEY.find_iter(data).find_map(|at| {
        let value = data[at + MODEL_KEY.needle().len()..].trim_ascii_start();
        let value = value.strip_prefix(b":")?.trim_ascii_start();
        let end = memchr::memchr(b'"', value.strip_prefix(b"\"")?)? + 2;
        // No server uses a name with an escaped quote.
        serde_json::from_slice::<Box<str>>(&value[..end]).ok()
    })?;
    (1..=LONGEST_MODEL).contains(&name.len()).then_some(name)
}

static MODEL_KEY: LazyLock<memmem::Finder<'_>> =
    LazyLock::new(|| memmem::Finder::new(b"\"model\""));

/// Data with token counts contains this.
pub(super) static USAGE_KEY: LazyLock<memmem::Finder<'_>> =
    LazyLock::new(|| memmem::Finder::new(b"\"usage\""));

/// Whether any key `usage` has an object as its value. Generated text cannot match: its quotes are escaped.
fn may_have_usage(data: &[u8]) -> bool {
    USAGE_KEY.find_iter(data).any(|at| {
        data[at + USAGE_KEY.needle().len()..]
            .trim_ascii_start()
            .strip_prefix(b":")
            .is_some_and(|value| value.trim_ascii_start().starts_with(b"{"))
    })
}

/// Where a family reports token counts: in the data itself, in its `response` or in its `message`.
#[derive(Deserialize)]
pub(super) struct ReportedUsage {
    pub usage: Option<Tokens>,
    pub response: Option<Holder>,
    pub message: Option<Holder>,
}

#[derive(Deserialize)]
pub(super) struct Holder {
    pub usage: Option<Tokens>,
}

/// Both naming schemes; a server may send both.
#[derive(Deserialize)]
pub(super) struct Tokens {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

impl ReportedUsage {
    #[cold]
    fn parse(data: &[u8]) -> Option<Self> {
        serde_json::from_slice(data).ok()
    }
}

/// The largest number that is accepted as a token count. Counts are added up, over servers and in metrics for years, so a server
/// that reports nonsense must not make a sum overflow.
const MAX_TOKENS: u64 = u32::MAX as u64;

impl Tokens {
    pub fn known(self) -> Option<Usage> {
        let prompt = self.prompt_tokens.or(self.input_tokens);
        let completion = self.completion_tokens.or(self.output_tokens);
        let [prompt, completion] =
            [prompt, completion].map(|count| count.filter(|count| *count <= MAX_TOKENS));
        (prompt.is_some() || completion.is_some()).then(|| Usage {
            prompt_tokens: prompt.unwrap_or(0),
            completion_tokens: completion.unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn tokens(prompt_tokens: u64, completion_tokens: u64) -> Option<Usage> {
        Some(Usage {
            prompt_tokens,
            completion_tokens,
        })
    }

    #[test]
    fn each_family_reports_at_its_own_place() {
        let dynamo = br#"{"id":"chatcmpl-1","choices":[],"created":1,"model":"tiny","object":"chat.completion.chunk","usage":{"prompt_tokens":16,"completion_tokens":3,"total_tokens":19,"prompt_tokens_details":{"cached_tokens":0}}}"#;
        let completed = br#"{"type":"response.completed","response":{"status":"completed","usage":{"input_tokens":16,"output_tokens":4,"total_tokens":20}}}"#;
        let start = br#"{"type":"message_start","message":{"role":"assistant","content":[],"usage":{"input_tokens":25,"output_tokens":1}}}"#;
        let delta = br#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage": {"output_tokens":15}}"#;
        assert_eq!(usage(Api::Chat, dynamo), tokens(16, 3));
        assert_eq!(usage(Api::Completions, dynamo), tokens(16, 3));
        assert_eq!(usage(Api::Responses, dynamo), None);
        assert_eq!(usage(Api::Responses, completed), tokens(16, 4));
        assert_eq!(usage(Api::Messages, start), tokens(25, 1));
        assert_eq!(usage(Api::Messages, delta), tokens(0, 15));
    }

    #[test]
    fn each_family_names_its_model_at_its_own_place() {
        for (data, name) in [
            (
                r#"{"id":"1","model":"a/b","choices":[{"delta":{"content":"hi"}}]}"#,
                Some("a/b"),
            ),
            (
                r#"{"type":"response.created","response":{"model":"m"}}"#,
                Some("m"),
            ),
            (
                r#"{"type":"message_start","message":{"model":"m"}}"#,
                Some("m"),
            ),
            (
                r#"{"type":"content_block_delta","delta":{"text":"\"model\":\"x\""}}"#,
                None,
            ),
            (r#"{"model":""}"#, None),
            (r#"{"model":7}"#, None),
            (r#"{"model" : "\u00e9"}"#, Some("é")),
            (r#"{"model":"cut"#, None),
            ("[DONE]", None),
        ] {
            assert_eq!(model(data.as_bytes()).as_deref(), name, "{data}");
        }
        let long = format!(r#"{{"model":"{}"}}"#, "x".repeat(LONGEST_MODEL + 1));
        assert_eq!(model(long.as_bytes()), None);
    }

    #[test]
    fn a_value_that_is_not_an_object_is_not_usage() {
        for data in [
            &br#"{"choices":[],"usage":null}"#[..],
            br#"{"choices":[],"usage" : null}"#,
            br#"{"choices":[{"delta":{"content":"\"usage\":{"}}]}"#,
            br#"{"choices":[],"usage":{}}"#,
            br#"{"choices":[],"usage":{"prompt_tokens":"many"}}"#,
            br#"{"choices":[],"usage":{"prompt_tokens":-1}}"#,
            br#"{"choices":[],"usage":{"completion_tokens":4294967296}}"#,
            br#"{"choices":[],"usage":{"completion_tokens":18446744073709551615}}"#,
            br#"{"choices":[],"usage":{"completion_tokens":18446744073709551616}}"#,
            br#"{"usage":{"#,
            b"[DONE]",
            b"",
        ] {
            assert_eq!(usage(Api::Chat, data), None, "{}", data.escape_ascii());
        }
    }

    #[test]
    fn unary_answers_report_in_both_namings() {
        let chat = br#"{"object":"chat.completion","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9,"total_tokens":16}}"#;
        let message = br#"{"type":"message","usage":{"input_tokens":7,"cache_read_input_tokens":0,"output_tokens":9}}"#;
        assert_eq!(usage_of_json_body(chat), tokens(7, 9));
        assert_eq!(usage_of_json_body(message), tokens(7, 9));
        assert_eq!(usage_of_json_body(b"{}"), None);
    }

    #[test]
    fn merging_keeps_the_greater_counts() {
        let mut total = Usage {
            prompt_tokens: 25,
            completion_tokens: 1,
        };
        total.merge(Usage {
            prompt_tokens: 0,
            completion_tokens: 15,
        });
        assert_eq!(Some(total), tokens(25, 15));
    }
}
