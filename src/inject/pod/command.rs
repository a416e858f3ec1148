//! Finds a port in the command of a probe or hook.

use std::ops::Range;

/// Words that precede a port that is a separate word.
const HOSTS: [&str; 5] = ["localhost", "127.0.0.1", "0.0.0.0", "::1", "[::1]"];
const FLAGS: [&str; 4] = ["-p", "-P", "--port", "--http-port"];

/// The positions of a port number in a word.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mentions {
    /// As the port of an address, or after a host or a flag.
    pub ports: Vec<Range<usize>>,
    /// Elsewhere, where it may have another meaning.
    pub is_doubtful: bool,
}

/// Finds the number `port` in `word`, which may be a whole script. `before` is the preceding word.
pub(super) fn mentions(before: &str, word: &str, port: u16) -> Mentions {
    let number = port.to_string();
    let mut found = Mentions {
        ports: Vec::new(),
        is_doubtful: false,
    };
    for (at, _) in word.match_indices(&number) {
        let (head, tail) = (&word[..at], &word[at + number.len()..]);
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_.".contains(c);
        if head.ends_with(is_part) || tail.starts_with(is_part) {
            continue;
        }
        let is_between = |c: char| c.is_whitespace() || "\"'=".contains(c);
        let rest = head.trim_end_matches(is_between);
        let last = match (rest.is_empty(), rest.len() == head.len()) {
            (true, _) => before,
            // It follows something else in the same word.
            (false, true) => "",
            (false, false) => rest.rsplit(is_between).next().unwrap_or_default(),
        };
        let is_address = head.ends_with(':') || head.contains("/dev/tcp/") && head.ends_with('/');
        let is_expected = HOSTS.contains(&last) || FLAGS.contains(&last) || last.starts_with("$(");
        match is_address || is_expected {
            true => found.ports.push(at..at + number.len()),
            false => found.is_doubtful = true,
        }
    }
    found
}

/// The shortest part of `word` that contains all `places` and occurs only once, and its replacement with another port.
pub(super) fn exchange(word: &str, places: &[Range<usize>], to: u16) -> Option<(String, String)> {
    let (first, last) = (places.first()?, places.last()?);
    let is_break = |c: char| c.is_ascii_whitespace() || "\"'".contains(c);
    let before = |at: usize| word[..at].rfind(is_break).map_or(0, |at| at + 1);
    let after = |at: usize| word[at..].find(is_break).map_or(word.len(), |end| at + end);
    let colon = first.start - usize::from(word[..first.start].ends_with(':'));
    let wider = [
        colon..last.end,
        before(first.start)..after(last.end),
        0..word.len(),
    ];
    let part = wider
        .into_iter()
        .find(|part| word.matches(&word[part.clone()]).count() == 1)?;
    let mut new = String::new();
    let mut at = part.start;
    for place in places {
        new.push_str(&word[at..place.start]);
        new.push_str(&to.to_string());
        at = place.end;
    }
    new.push_str(&word[at..part.end]);
    Some((word[part].to_owned(), new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_exchanged_where_it_is_one_and_mentioned_elsewhere() {
        for (before, word, said, is_doubtful) in [
            ("", "curl localhost:80/x", Some((":80", ":8080")), false),
            ("", "curl http://a:8000/metrics", None, false),
            (
                "",
                "curl a:8000 && curl http://b:80/x",
                Some(("http://b:80/x", "http://b:8080/x")),
                false,
            ),
            ("", "nc -z localhost 80", Some(("80", "8080")), false),
            ("localhost", "80", Some(("80", "8080")), false),
            ("sleep", "80", None, true),
            (
                "",
                "sleep 80; nc -p 80",
                Some(("sleep 80; nc -p 80", "sleep 80; nc -p 8080")),
                true,
            ),
            ("", "x --port=80", Some(("80", "8080")), false),
            ("", "</dev/tcp/127.0.0.1/80", Some(("80", "8080")), false),
            (
                "",
                "curl a:80 || curl b:80",
                Some((":80 || curl b:80", ":8080 || curl b:8080")),
                false,
            ),
            ("", "echo 1.80 v80 80x", None, false),
        ] {
            let found = mentions(before, word, 80);
            let exchanged = exchange(word, &found.ports, 8080);
            let exchanged = exchanged
                .as_ref()
                .map(|(from, to)| (from.as_str(), to.as_str()));
            assert_eq!(
                (exchanged, found.is_doubtful),
                (said, is_doubtful),
                "{word}"
            );
        }
    }
}
