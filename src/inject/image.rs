//! The names of images, by the same rules as the schema of the controller's chart.

const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;

/// Whether a registry can contain an image with this name: `[HOST/]PATH[:TAG][@DIGEST]`.
pub(super) fn is_valid(image: &str) -> bool {
    let (name, digest) = match image.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (image, None),
    };
    let last = name.rfind('/').unwrap_or(0);
    let (name, tag) = match name[last..].find(':') {
        Some(colon) => (&name[..last + colon], Some(&name[last + colon + 1..])),
        None => (name, None),
    };
    let (host, path) = match name.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => {
            (Some(first), rest)
        }
        _ => (None, name),
    };
    name.len() <= MAX_NAME
        && host.is_none_or(is_host)
        && path.split('/').all(is_component)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest)
}

fn is_host(host: &str) -> bool {
    let has_address = host.starts_with('[');
    let (host, port) = match host.rsplit_once(':') {
        Some((host, port)) if !has_address || host.ends_with(']') => (host, Some(port)),
        _ => (host, None),
    };
    let address = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let is_label = |label: &str| {
        !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    let is_port = |port: &str| !port.is_empty() && port.chars().all(|c| c.is_ascii_digit());
    port.is_none_or(is_port)
        && match address {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => host.split('.').all(is_label),
        }
}

/// Whether it consists of lower-case letters and digits, with `.`, `_`, `__`, or any number of `-` between them.
fn is_component(component: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_separator =
        |text: &str| ["", ".", "_", "__"].contains(&text) || text.chars().all(|c| c == '-');
    component.starts_with(is_word)
        && component.ends_with(is_word)
        && component.split(is_word).all(is_separator)
}

fn is_tag(tag: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    tag.starts_with(is_word)
        && tag.len() <= MAX_TAG
        && tag.chars().all(|c| is_word(c) || c == '.' || c == '-')
}

fn is_digest(digest: &str) -> bool {
    let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    let value = digest.strip_prefix("sha256:");
    value.is_some_and(|value| value.len() == 64 && value.chars().all(hex))
}

#[cfg(test)]
mod tests {
    use super::is_valid;

    #[test]
    fn names_are_checked_as_a_kubelet_does() {
        let digest = format!("a@sha256:{}", "0f".repeat(32));
        for image in [
            "a",
            "a:b",
            "a/b:C_1.2-x",
            "registry.example/crossfade:0.1.0",
            "localhost/a",
            "localhost:5000/a/b_c__d--e.f:1",
            "host:5000/a",
            "Registry.Example/a",
            "10.0.0.1:80/a",
            "[::1]:5000/a:1",
            "[::1]/a",
            &digest,
        ] {
            assert!(is_valid(image), "{image}");
        }
        let long = "a".repeat(256);
        for image in [
            "",
            " ",
            "a:b:c",
            "UPPER/x",
            "Upper",
            "a:",
            "a:-b",
            "a/",
            "/a",
            "a//b",
            "a..b",
            "a___b",
            "-a",
            "a-",
            "a b",
            "a@b",
            "a@sha256:00",
            "a:b@",
            "https://a/b",
            "host:x/a",
            "[::g]/a",
            "[::1/a",
            "$IMAGE",
            "ä",
            &long,
        ] {
            assert!(!is_valid(image), "{image}");
        }
    }
}
