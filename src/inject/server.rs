//! Recognizes model servers by their containers.

mod address;
mod arguments;
mod arrays;
mod assigned;
mod given;
mod moves;
mod port;
mod script;
mod shell;
mod variables;

use std::{iter, slice};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

pub(super) use self::address::host;
pub(super) use self::moves::{Move, Swap};
pub(super) use self::port::{
    Doubtful, PortOptions, Relocated, doubtful_variable, is_on_socket, is_one_of_several, relocate,
};
pub(super) use self::variables::{overriding, unknown};

/// The servers that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Server {
    Dynamo,
    Vllm,
    Sglang,
    /// Identified by its port options.
    Other,
}

/// How a server is recognized.
struct Marks {
    server: Server,
    /// In its command and arguments.
    words: &'static [&'static str],
    /// Names of its image, without registry and tag.
    images: &'static [&'static str],
}

const MARKS: [Marks; 3] = [
    Marks {
        server: Server::Dynamo,
        words: &["dynamo.frontend"],
        images: &["dynamo-frontend"],
    },
    Marks {
        server: Server::Vllm,
        words: &["vllm serve", "vllm.entrypoints.openai.api_server"],
        images: &["vllm-openai", "vllm"],
    },
    Marks {
        server: Server::Sglang,
        words: &[
            "sglang.launch_server",
            "sglang serve",
            "sglang_router.launch_router",
        ],
        images: &["sglang"],
    },
];

/// Dynamo workers, which do not serve clients.
const WORKERS: [&str; 6] = [
    "dynamo.vllm",
    "dynamo.sglang",
    "dynamo.trtllm",
    "dynamo.mocker",
    "dynamo.planner",
    "dynamo.router",
];

/// Sub-commands of vLLM that serve no clients.
const OTHER_COMMANDS: [&str; 5] = ["bench", "chat", "collect-env", "complete", "run-batch"];

impl Server {
    /// The server that runs in a container, if known.
    pub fn of(container: &Json) -> Option<Self> {
        let line = command_line(container);
        let has_word = |marks: &&Marks| marks.words.iter().any(|word| line.contains(word));
        let by_word = MARKS.iter().find(has_word).map(|marks| marks.server);
        // A container may run both, in one script.
        if is_worker(container) && by_word != Some(Self::Dynamo) {
            return None;
        }
        if by_word.is_some() {
            return by_word;
        }
        if is_variable(container, "DYN_HTTP_PORT") {
            return Some(Self::Dynamo);
        }
        // The image only decides if the command does not.
        let image = merged(container, "image").as_str().unwrap_or_default();
        let name = image.rsplit('/').next().unwrap_or_default();
        let name = name.split([':', '@']).next().unwrap_or_default();
        let has_own_command = merged(container, "command").is_array();
        let by_image = MARKS.iter().find(|marks| marks.images.contains(&name));
        by_image
            .filter(|_| !has_own_command && !is_other_command(&line))
            .map(|marks| marks.server)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Dynamo => "a Dynamo frontend",
            Self::Vllm => "a vLLM server",
            Self::Sglang => "an SGLang server",
            Self::Other => "an OpenAI-compatible server",
        }
    }

    /// Default port.
    pub fn default_port(self) -> u16 {
        match self {
            Self::Sglang => 30000,
            _ => 8000,
        }
    }

    /// Liveness path.
    pub fn live(self) -> &'static str {
        match self {
            Self::Dynamo => "/live",
            _ => "/health",
        }
    }

    pub(super) fn flag(self) -> Option<&'static str> {
        match self {
            Self::Dynamo => Some("--http-port"),
            Self::Vllm | Self::Sglang => Some("--port"),
            Self::Other => None,
        }
    }

    fn variable(self) -> Option<&'static str> {
        (self == Self::Dynamo).then_some("DYN_HTTP_PORT")
    }

    /// The words of a command line after which arguments may follow.
    fn words(self) -> &'static [&'static str] {
        let marks = MARKS.iter().find(|marks| marks.server == self);
        marks.map_or(&[], |marks| marks.words)
    }
}

/// Whether it is configured as a Dynamo worker, or as a vLLM worker without an API.
pub(super) fn is_worker(container: &Json) -> bool {
    let line = command_line(container);
    // In a script, another command may serve clients.
    let lists = ["command", "args"].iter();
    let mut texts = lists
        .filter_map(|list| merged(container, list).as_array())
        .flatten()
        .filter_map(Json::as_str);
    let serves = |text: &str| {
        let starts = script::starts(text, Server::Vllm.words());
        starts.iter().any(|start| script::is_serving(text, start))
    };
    let is_headless =
        line.split_whitespace().any(|word| word == "--headless") && !texts.any(serves);
    is_headless || WORKERS.iter().any(|worker| line.contains(worker))
}

/// The number of nodes of an SGLang or vLLM server, if it is more than one.
pub(super) fn nodes(container: &Json) -> Option<u32> {
    let line = command_line(container);
    let mut words = line.split_whitespace();
    let word = words.find(|word| *word == "--nnodes" || word.starts_with("--nnodes="))?;
    let value = match word.split_once('=') {
        Some((_, value)) => value,
        None => words.next()?,
    };
    value.parse().ok().filter(|nodes| *nodes > 1)
}

/// The argument that makes it the prefill or the decode half of a server.
pub(super) fn half(container: &Json) -> Option<String> {
    let line = command_line(container);
    let has = |word: &str| line.contains(word);
    let mut words = line.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let (flag, value) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (word, words.peek().copied()),
        };
        let value = value.unwrap_or_default().trim_matches(['"', '\'']);
        if flag == "--disaggregation-mode" && ["prefill", "decode"].contains(&value) {
            return Some(format!("{flag} {value}"));
        }
    }
    let roles = ["kv_producer", "kv_consumer"].into_iter();
    let mut roles = roles.filter(|role| has("--kv-transfer-config") && has(role));
    roles
        .next()
        .map(|role| format!("--kv-transfer-config with {role}"))
}

/// Whether it speaks TLS to its clients.
pub(super) fn speaks_tls(container: &Json) -> bool {
    let line = command_line(container);
    ["--ssl-keyfile", "--ssl-certfile", "--tls-cert-path"]
        .iter()
        .any(|flag| line.contains(flag))
        || is_variable(container, "DYN_TLS_CERT_PATH")
}

/// Whether arguments in place of those of a server run another command of its program, such as `vllm bench serve`.
fn is_other_command(line: &str) -> bool {
    let mut words = line.split_whitespace().peekable();
    words.next_if(|word| word.rsplit('/').next() == Some("vllm"));
    words
        .next()
        .is_some_and(|word| OTHER_COMMANDS.contains(&word))
}

fn command_line(container: &Json) -> String {
    let lists = ["command", "args"]
        .iter()
        .filter_map(|list| merged(container, list).as_array());
    let words: Vec<_> = lists.flatten().filter_map(Json::as_str).collect();
    words.join(" ")
}

/// A value of a container, or of what a merge key (`<<`) adds to it. Such a container cannot be edited, but it is reported.
fn merged<'j>(container: &'j Json, key: &str) -> &'j Json {
    let added = &container["<<"];
    let added = added
        .as_array()
        .map_or(slice::from_ref(added), Vec::as_slice);
    let mut all = iter::once(container).chain(added).map(|one| &one[key]);
    all.find(|value| !value.is_null()).unwrap_or(&Json::Null)
}

fn is_variable(container: &Json, name: &str) -> bool {
    variable(container, name).is_some()
}

/// The last variable of that name, which takes precedence, and its index.
pub(super) fn variable<'j>(container: &'j Json, name: &str) -> Option<(usize, &'j Json)> {
    let variables = container["env"].as_array()?;
    let index = variables
        .iter()
        .rposition(|variable| variable["name"] == name)?;
    Some((index, &variables[index]))
}
