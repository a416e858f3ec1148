//! Checks requests that reach a server: they must be exactly as sent by the client, except for the changes a gateway must make.

use crate::client::request::{ClientRequest, Kind, RequestFraming};
use crate::http1::{Broken, Framing, Head, is_token};
use crate::ledger::Ledger;
use crate::wire::{ID, Id, LENGTH};

/// What is wrong, and with which exchange, if known.
pub type Wrong = (Option<Id>, String);

/// Method and target.
pub type Line<'a> = (&'a str, &'a str);

/// Fields that apply to a single connection.
const HOP_BY_HOP: [&str; 4] = ["keep-alive", "proxy-connection", "x-hop", "trailer"];

/// The protocol that clients request.
pub const PROTOCOL: &str = "chaos";

pub fn request_line(head: &Head) -> Result<Line<'_>, Wrong> {
    let words: Vec<_> = head.first_line.split(' ').collect();
    match words[..] {
        [method, target, "HTTP/1.1"] if is_token(method) && target.starts_with('/') => {
            Ok((method, target))
        }
        _ => Err((None, "no request line".into())),
    }
}

/// The exchange that a head belongs to, and the number of this visit.
pub fn head(ledger: &Ledger, line: Line<'_>, head: &Head) -> Result<(ClientRequest, usize), Wrong> {
    let id = head.get(ID).and_then(Id::parse);
    let known = id.and_then(|id| ledger.known(id));
    let Some((planned, visit)) = known else {
        return Err((id, "a request that nobody sent".into()));
    };
    let wrong = |what: String| Err((id, what));
    if line != (planned.method(), &planned.target()) {
        return wrong("another request line than was sent".into());
    }
    for name in [ID, LENGTH, "host"] {
        if head.count(name) != 1 {
            return wrong(format!("{} fields {name}", head.count(name)));
        }
    }
    if let Some(name) = HOP_BY_HOP.iter().find(|name| head.count(name) > 0) {
        return wrong(format!("{name} was passed on"));
    }
    let switching = [("connection", "upgrade"), ("upgrade", PROTOCOL)];
    let is_http1 = !head.first_line.is_empty();
    for (name, value) in switching {
        let wanted = (planned.kind == Kind::Upgrade && is_http1).then_some(value);
        if head.get(name) != wanted || head.count(name) > 1 {
            return wrong(format!("{name} is {:?}, not {wanted:?}", head.get(name)));
        }
    }
    if head.count("expect") > usize::from(planned.expects) {
        return wrong("an expectation that nobody has".into());
    }
    Ok((planned, visit))
}

/// The framing of the body of an HTTP/1.1 request.
pub fn framing(planned: &ClientRequest, head: &Head) -> Result<Option<Framing>, String> {
    let framing = head.framing().map_err(|broken| match broken {
        Broken::Malformed(what) => what,
        other => format!("{other:?}"),
    })?;
    match (planned.framing, framing) {
        (RequestFraming::None, None | Some(Framing::Length(0))) => Ok(None),
        (RequestFraming::Length | RequestFraming::Chunked(_), Some(Framing::Length(length)))
            if length == planned.length =>
        {
            Ok(framing)
        }
        (RequestFraming::Length | RequestFraming::Chunked(_), Some(Framing::Chunked)) => {
            Ok(framing)
        }
        (actions, framing) => Err(format!("{actions:?} became {framing:?}")),
    }
}
