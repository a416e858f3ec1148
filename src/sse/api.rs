//! Which family of LLM API a path belongs to.
//!
//! Must not know: events; only names and paths.

/// A family of LLM API, as far as its streams differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Api {
    /// OpenAI Chat Completions.
    Chat,
    /// OpenAI Completions, the legacy one.
    Completions,
    /// OpenAI Responses.
    Responses,
    /// Anthropic Messages.
    Messages,
    /// Everything else: models, embeddings, token counts.
    Other,
}

impl Api {
    /// Every family, in the order of the declaration.
    pub const ALL: [Self; 5] = [
        Self::Chat,
        Self::Completions,
        Self::Responses,
        Self::Messages,
        Self::Other,
    ];

    /// The name used in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Other => "other",
        }
    }

    /// The family of a request path (without its query). Only the end of the path counts, so a prefix in front of `/v1`
    /// does not matter, and sub-resources such as `/v1/messages/count_tokens` are [`Api::Other`].
    #[must_use]
    pub fn of_path(path: &str) -> Self {
        if path.ends_with("/chat/completions") {
            Self::Chat
        } else if path.ends_with("/completions") {
            Self::Completions
        } else if path.ends_with("/responses") {
            Self::Responses
        } else if path.ends_with("/messages") {
            Self::Messages
        } else {
            Self::Other
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Api;

    #[test]
    fn the_end_of_a_path_tells_the_family() {
        for (path, api) in [
            ("/v1/chat/completions", Api::Chat),
            ("/team-a/v1/chat/completions", Api::Chat),
            ("/v1/completions", Api::Completions),
            ("/v1/responses", Api::Responses),
            ("/v1/messages", Api::Messages),
            ("/v1/responses/input_tokens", Api::Other),
            ("/v1/responses/resp_1/cancel", Api::Other),
            ("/v1/messages/count_tokens", Api::Other),
            ("/v1/models", Api::Other),
            ("/v1/mycompletions", Api::Other),
            ("/v1/completions/", Api::Other),
            ("completions", Api::Other),
            ("/", Api::Other),
            ("", Api::Other),
        ] {
            assert_eq!(Api::of_path(path), api, "{path}");
        }
    }

    #[test]
    fn names_are_distinct() {
        for a in Api::ALL {
            assert_eq!(
                Api::ALL.iter().filter(|b| b.as_str() == a.as_str()).count(),
                1
            );
        }
    }
}
