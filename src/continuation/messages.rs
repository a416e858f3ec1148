//! The meaning of an event of Messages. The text is in the deltas of one block; thinking, tool calls and citations use other
//! blocks or deltas.

use super::ContinuationReason;
use super::chunk::{BlockEvent, Chunk};
use super::json::{self, Object};
use crate::sse::Usage;

/// Reads the event from which `chunk` was created. `None` if it is not an event.
pub fn read<'a>(mut chunk: Chunk<'a>) -> Option<Chunk<'a>> {
    let kind = json::string(chunk.object.value("type")?)?;
    match &*kind {
        "message_start" => {
            let message = chunk.object.object("message")?;
            if message
                .value("content")
                .is_some_and(|value| !json::is_blank(value))
            {
                chunk.prevent(ContinuationReason::Content);
            }
            // The client has not received anything that was generated.
            chunk.usage = chunk.usage.map(|usage| Usage {
                completion_tokens: 0,
                ..usage
            });
        }
        "content_block_start" => {
            chunk.block = Some((BlockEvent::Start, index(&chunk.object)?));
            let block = chunk.object.object("content_block")?;
            read_part(&mut chunk, &block)?;
            // The text of a block comes in its deltas.
            if chunk.text.take().is_some() {
                chunk.prevent(ContinuationReason::Content);
            }
        }
        "content_block_delta" => {
            chunk.block = Some((BlockEvent::Delta, index(&chunk.object)?));
            let delta = chunk.object.object("delta")?;
            read_part(&mut chunk, &delta)?;
        }
        "content_block_stop" => chunk.block = Some((BlockEvent::Stop, index(&chunk.object)?)),
        "message_delta" => {
            let delta = chunk.object.object("delta")?;
            chunk.finish = delta.given("stop_reason").is_some();
        }
        "message_stop" => chunk.finish = true,
        "error" => return None,
        // The API may add event types, and clients ignore those that they do not know.
        _ => {}
    }
    Some(chunk)
}

/// Reads a block, or a delta of one.
fn read_part<'a>(chunk: &mut Chunk<'a>, part: &Object<'a>) -> Option<()> {
    let kind = json::string(part.value("type")?)?;
    match &*kind {
        "text" | "text_delta" => {
            chunk.read_text(part, "text");
            let cites = part
                .given("citations")
                .is_some_and(|value| !json::is_blank(value));
            if cites {
                chunk.prevent(ContinuationReason::Content);
            }
        }
        "thinking" | "redacted_thinking" | "thinking_delta" | "signature_delta" => {
            chunk.reasoning = true;
        }
        "tool_use" | "input_json_delta" => chunk.prevent(ContinuationReason::ToolCalls),
        _ => chunk.prevent(ContinuationReason::Content),
    }
    Some(())
}

fn index(event: &Object<'_>) -> Option<u32> {
    std::str::from_utf8(event.value("index")?)
        .ok()?
        .parse()
        .ok()
}

/// The event that ends a block.
pub fn end_of_block(index: u32) -> String {
    format!(
        "event: content_block_stop\ndata: {{\"type\":\"content_block_stop\",\"index\":{index}}}\n\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sse::Api;

    fn read_data(data: &str) -> Option<Chunk<'_>> {
        read(Chunk::of(Api::Messages, data.as_bytes())?)
    }

    #[test]
    fn an_event_says_text_the_end_or_what_is_not_continued() {
        for (data, text, finish, reasoning, other) in [
            (
                r#"{"type":"message_start","message":{"id":"m","content":[],"usage":{"input_tokens":3,"output_tokens":1}}}"#,
                None,
                false,
                false,
                None,
            ),
            (
                r#"{"type":"message_start","message":{"content":[{"type":"text","text":"x"}]}}"#,
                None,
                false,
                false,
                Some(ContinuationReason::Content),
            ),
            (
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
                None,
                false,
                false,
                None,
            ),
            (
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"x"}}"#,
                None,
                false,
                false,
                Some(ContinuationReason::Content),
            ),
            (
                r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}"#,
                None,
                false,
                false,
                Some(ContinuationReason::ToolCalls),
            ),
            (
                r#"{"type":"content_block_start","index":1,"content_block":{"type":"server_tool_use","id":"t"}}"#,
                None,
                false,
                false,
                Some(ContinuationReason::Content),
            ),
            (
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}"#,
                None,
                false,
                true,
                None,
            ),
            (
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a\"b"}}"#,
                Some(r#"a\"b"#),
                false,
                false,
                None,
            ),
            (
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":""}}"#,
                None,
                false,
                false,
                None,
            ),
            (
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}"#,
                None,
                false,
                true,
                None,
            ),
            (
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{"}}"#,
                None,
                false,
                false,
                Some(ContinuationReason::ToolCalls),
            ),
            (
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"citations_delta","citation":{}}}"#,
                None,
                false,
                false,
                Some(ContinuationReason::Content),
            ),
            (
                r#"{"type":"content_block_stop","index":0}"#,
                None,
                false,
                false,
                None,
            ),
            (
                r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":3}}"#,
                None,
                true,
                false,
                None,
            ),
            (
                r#"{"type":"message_delta","delta":{"stop_reason":null}}"#,
                None,
                false,
                false,
                None,
            ),
            (r#"{"type":"message_stop"}"#, None, true, false, None),
            (r#"{"type":"ping"}"#, None, false, false, None),
            (
                r#"{"type":"something_new","index":7}"#,
                None,
                false,
                false,
                None,
            ),
        ] {
            let chunk = read_data(data).expect(data);
            let found = chunk.text.clone().map(|range| &data[range]);
            assert_eq!(
                (found, chunk.finish, chunk.reasoning, chunk.other),
                (text, finish, reasoning, other),
                "{data}"
            );
        }
        for data in [
            r#"{"type":"error","error":{"type":"overloaded_error"}}"#,
            r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"x"}}"#,
            r#"{"type":"content_block_delta","index":-1,"delta":{"type":"text_delta","text":"x"}}"#,
            r#"{"type":"content_block_delta","index":0}"#,
            r#"{"choices":[]}"#,
            "[DONE]",
        ] {
            assert!(read_data(data).is_none(), "{data}");
        }
    }
}
