//! Properties of the joined stream: wherever the first part breaks, the client gets the text once.

use proptest::prelude::*;
use serde_json::Value;

use super::events;
use crate::continuation::*;
use crate::sse::Api;

/// How a server writes its stream.
#[derive(Clone, Debug)]
struct Style {
    piece: usize,
    ascii: bool,
    role_in_each: bool,
    preambles: usize,
    counts: bool,
    /// What it sends before each event.
    keep_alive: &'static str,
}

fn style() -> impl Strategy<Value = Style> {
    (
        1usize..6,
        any::<bool>(),
        any::<bool>(),
        0usize..3,
        any::<bool>(),
        prop::sample::select(vec![
            "",
            ": ping\n\n",
            "data:\n\n",
            "data: {}\n\n",
            "data: {\"type\":\"ping\"}\n\n",
        ]),
    )
        .prop_map(
            |(piece, ascii, role_in_each, preambles, counts, keep_alive)| Style {
                piece,
                ascii,
                role_in_each,
                preambles,
                counts,
                keep_alive,
            },
        )
}

fn escaped(text: &str, ascii: bool) -> String {
    let json = serde_json::to_string(text).unwrap();
    if !ascii {
        return json;
    }
    let mut out = String::new();
    for c in json.chars() {
        let mut units = [0; 2];
        match c.is_ascii() {
            true => out.push(c),
            false => c
                .encode_utf16(&mut units)
                .iter()
                .for_each(|unit| out.push_str(&format!("\\u{unit:04x}"))),
        }
    }
    out
}

/// The stream of a server that generates `text`, of which it was given `given`.
fn stream(api: Api, id: &str, text: &str, given: &str, style: &Style) -> Vec<u8> {
    let rest = text
        .strip_prefix(given)
        .expect("what it was given is the beginning");
    let prompt = 10 + given.chars().count();
    let mut out = String::new();
    let mut said = 0;
    let mut event = |choice: String, said: usize, finish: &str| {
        let usage = match style.counts {
            true => format!(
                r#","usage":{{"prompt_tokens":{prompt},"completion_tokens":{said},"total_tokens":{}}}"#,
                prompt + said
            ),
            false => String::new(),
        };
        out += style.keep_alive;
        out += &format!(
            "data: {{\"id\":\"{id}\",\"choices\":[{{\"index\":0,{choice},\"finish_reason\":{finish}}}]{usage}}}\n\n"
        );
    };
    let content = |text: &str| match api {
        Api::Chat => {
            let role = if style.role_in_each {
                r#""role":"assistant","#
            } else {
                ""
            };
            format!(
                "\"delta\":{{{role}\"content\":{}}}",
                escaped(text, style.ascii)
            )
        }
        _ => format!("\"text\":{}", escaped(text, style.ascii)),
    };
    for _ in 0..style.preambles {
        event(content(""), 0, "null");
    }
    let chars: Vec<char> = rest.chars().collect();
    for piece in chars.chunks(style.piece) {
        said += piece.len();
        event(content(&piece.iter().collect::<String>()), said, "null");
    }
    event(content(""), said, "\"stop\"");
    out += "data: [DONE]\n\n";
    out.into_bytes()
}

/// The text in the data of an event.
fn text_in(api: Api, data: &[u8]) -> String {
    let Ok(value) = serde_json::from_slice::<Value>(data) else {
        return String::new();
    };
    let choice = &value["choices"][0];
    let text = if api == Api::Chat {
        &choice["delta"]["content"]
    } else {
        &choice["text"]
    };
    text.as_str().unwrap_or_default().to_owned()
}

proptest! {
    #[test]
    fn the_client_gets_the_text_once_no_matter_where_the_stream_breaks(
        api in prop_oneof![Just(Api::Chat), Just(Api::Completions)],
        text in "[a-c \"\\\\\\n\u{1}é€😀]{1,40}",
        first in style(),
        second in style(),
        cut in any::<prop::sample::Index>(),
        limit in prop::option::of(50u64..60),
    ) {
        let bytes = stream(api, "first", &text, "", &first);
        let broken = &bytes[..cut.index(bytes.len())];
        let mut sent = Sent::new(api, 10_000);
        let mut seen: Vec<Vec<u8>> = events(broken);
        seen.iter().for_each(|data| sent.take(data));
        let limits = limit.map_or(String::new(), |limit| format!(",\"max_tokens\":{limit}"));
        let body = match api {
            Api::Chat => format!(r#"{{"messages":[{{"role":"user","content":"?"}}],"stream":true{limits}}}"#),
            _ => format!(r#"{{"prompt":"?","stream":true{limits}}}"#),
        };
        let resumption = match sent.resumption() {
            // The finish reason came, so all of the text did.
            Err(reason) => {
                prop_assert_eq!(reason, ContinuationReason::Finished);
                let said: String = seen.iter().map(|data| text_in(api, data)).collect();
                prop_assert_eq!(said, text);
                return Ok(());
            }
            Ok(resumption) => resumption,
        };
        let request = Request::read(api, body.as_bytes()).unwrap();
        let tokens = sent.tokens();
        let body = match resumption {
            Resumption::Resend => body.clone().into(),
            Resumption::Continue => request.continued(&sent.text(), tokens).unwrap(),
        };
        let body: Value = serde_json::from_slice(&body).unwrap();
        if let (Some(limit), Resumption::Continue) = (limit, resumption) {
            prop_assert_eq!(body["max_tokens"].as_u64(), Some(limit - tokens));
        }
        let given = match api {
            Api::Chat => body["messages"][1]["content"].as_str().unwrap_or_default().to_owned(),
            _ => body["prompt"].as_str().unwrap()[1..].to_owned(),
        };
        let bytes = stream(api, "second", &text, &given, &second);
        let mut begun = false;
        for data in events(&bytes) {
            if !begun {
                match sent.opening(resumption, &data) {
                    JoinAction::Skip { .. } => continue,
                    JoinAction::Begin => {}
                    JoinAction::Refuse(reason) => panic!("{reason:?}"),
                }
                begun = true;
                sent.join(resumption, 0);
            }
            match sent.pass(&data) {
                Some(rewritten) => {
                    if let Some(before) = rewritten.before {
                        seen.extend(events(before.as_bytes()));
                    }
                    seen.push(rewritten.data);
                }
                None => seen.push(data),
            }
        }
        let said: String = seen.iter().map(|data| text_in(api, data)).collect();
        prop_assert_eq!(said, &*text);
        let id = if seen[0] == b"[DONE]" || broken.is_empty() { None } else { Some("first") };
        let has_choices = |value: &Value| value["choices"].is_array();
        let chunk = |data: &[u8]| serde_json::from_slice::<Value>(data).ok().filter(has_choices);
        let is_unknown = !events(broken).iter().any(|data| chunk(data).is_some());
        for data in &seen {
            if let (Some(value), Some(id), false) = (chunk(data), id, is_unknown) {
                prop_assert_eq!(&value["id"], id);
            }
        }
        if second.counts && resumption == Resumption::Continue && !(first.counts && first.piece > 1) {
            let last: Value = serde_json::from_slice(&seen[seen.len() - 2]).unwrap();
            let total = last["usage"]["total_tokens"].as_u64().unwrap();
            let all = last["usage"]["completion_tokens"].as_u64().unwrap();
            prop_assert_eq!(total, all + last["usage"]["prompt_tokens"].as_u64().unwrap());
        }
        // All of it is kept for yet another server.
        let kept: String = serde_json::from_slice(&[b"\"", &sent.text()[..], b"\""].concat()).unwrap();
        prop_assert_eq!(kept, text);
    }

    #[test]
    fn no_server_input_causes_a_panic(
        pieces in prop::collection::vec(
            prop::sample::select(vec![
                "{", "}", "[", "]", ",", ":", "\"choices\"", "\"delta\"", "\"content\"", "\"text\"", "\"a\"", "\"", "\\", "0", "null", "é",
            ]),
            0..30,
        ),
    ) {
        let data = pieces.concat();
        for api in [Api::Chat, Api::Completions, Api::Messages] {
            let mut sent = Sent::new(api, 100);
            sent.take(data.as_bytes());
            sent.take(data.as_bytes());
            let _ = sent.opening(Resumption::Continue, data.as_bytes());
            sent.join(Resumption::Continue, 0);
            let _ = sent.pass(data.as_bytes());
            let _ = Request::read(api, data.as_bytes()).map(|request| request.continued(b"x", 1));
        }
    }
}
