//! A head, read naively: split at each CRLF, then at the first colon. What the program accepts, this reads alike.

/// The first line and the fields (names in lower case) of a head.
pub type Lines = (Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>);

/// Reads a whole head, which begins where `head` does and ends where it does.
pub fn read(head: &[u8]) -> Option<Lines> {
    let text = head.strip_suffix(b"\r\n\r\n")?;
    let mut lines = Vec::new();
    let mut start = 0;
    while let Some(at) = text[start..].windows(2).position(|two| two == b"\r\n") {
        lines.push(&text[start..start + at]);
        start += at + 2;
    }
    lines.push(&text[start..]);
    let mut lines = lines.into_iter().skip_while(|line| line.is_empty());
    let first = lines.next()?.to_vec();
    let fields = lines.map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let value = line[colon + 1..].trim_ascii().to_vec();
        Some((line[..colon].to_ascii_lowercase(), value))
    });
    Some((first, fields.collect::<Option<_>>()?))
}

/// The values of all fields of a name.
pub fn all<'a>(lines: &'a Lines, name: &'a str) -> Vec<&'a [u8]> {
    let fields = lines.1.iter();
    let found = fields.filter(|(known, _)| known == name.as_bytes());
    found.map(|(_, value)| value.as_slice()).collect()
}
