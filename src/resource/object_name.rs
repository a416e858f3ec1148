//! Which names Kubernetes accepts for an object.

/// The maximum length in bytes.
const LONGEST: usize = 253;

/// Whether `text` is a DNS subdomain (RFC 1123), as Kubernetes requires of the names of most objects.
#[must_use]
pub fn is_object_name(text: &str) -> bool {
    text.len() <= LONGEST && text.split('.').all(is_dns_label)
}

fn is_dns_label(label: &str) -> bool {
    let known = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    !label.is_empty()
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label.bytes().all(known)
}

#[cfg(test)]
mod tests {
    use super::is_object_name;

    #[test]
    fn a_name_is_a_dns_subdomain() {
        for good in ["default", "chat-frontend", "a.b-1.c", "0", &"a".repeat(253)] {
            assert!(is_object_name(good), "{good}");
        }
        for wrong in [
            "",
            " ",
            "Default",
            "a_b",
            "-a",
            "a-",
            "a..b",
            "a.-b",
            "a/b",
            ".",
            "ä",
            &"a".repeat(254),
        ] {
            assert!(!is_object_name(wrong), "{wrong}");
        }
    }
}
