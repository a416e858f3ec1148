//! Numbers with separators, nouns and units.

use std::time::Duration;

/// The number with commas between thousands.
#[must_use]
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with its noun, which is given in the singular: `1 request`, `1,240 requests`.
#[must_use]
pub fn counted(number: u64, noun: &str) -> String {
    format!("{} {}", thousands(number), plural(number, noun))
}

/// A number that is too low, with its noun in the singular: `no requests`, `only 1 request`, `only 1,240 requests`.
#[must_use]
pub fn only(number: u64, noun: &str) -> String {
    match number {
        0 => format!("no {}", plural(0, noun)),
        _ => format!("only {}", counted(number, noun)),
    }
}

/// The number that is required, as the end of a sentence: `at least 200 are needed`.
#[must_use]
pub fn needed(number: u64) -> String {
    format!("at least {} {} needed", thousands(number), are(number))
}

/// The noun for this number: the singular for 1.
#[must_use]
pub fn plural(number: u64, noun: &str) -> String {
    match noun.strip_suffix('y') {
        _ if number == 1 => noun.to_owned(),
        Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{stem}ies"),
        _ => format!("{noun}s"),
    }
}

/// The verb for this number: `is` or `are`.
#[must_use]
pub const fn are(number: u64) -> &'static str {
    if number == 1 { "is" } else { "are" }
}

/// A share from 0 to 1: `5.0%`, or with two decimals below 1%.
#[must_use]
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let decimals = if percent > 0.0 && percent < 1.0 { 2 } else { 1 };
    format!("{percent:.decimals$}%")
}

/// A latency, to about three digits: `4.2 ms`, `312 ms`, `1.25 s`.
#[must_use]
pub fn latency(seconds: f64) -> String {
    match seconds {
        ..0.01 => format!("{:.1} ms", seconds * 1000.0),
        ..1.0 => format!("{:.0} ms", seconds * 1000.0),
        _ => format!("{seconds:.2} s"),
    }
}

/// A duration that a user has set: `250 ms`, `1.5 s`, `1,800 s`.
#[must_use]
pub fn seconds(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        return format!("{} ms", duration.as_millis());
    }
    match duration.subsec_millis() {
        0 => format!("{} s", thousands(duration.as_secs())),
        _ => format!("{} s", duration.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_object_of_a_kind_is_singular() {
        assert_eq!(counted(0, "stream"), "0 streams");
        assert_eq!(counted(1, "stream"), "1 stream");
        assert_eq!(counted(1_240, "stream"), "1,240 streams");
        assert_eq!(counted(1, "proxy"), "1 proxy");
        assert_eq!(counted(2, "proxy"), "2 proxies");
    }

    #[test]
    fn too_few_is_reported_as_none_or_with_the_number() {
        assert_eq!(only(0, "request"), "no requests");
        assert_eq!(only(1, "request"), "only 1 request");
        assert_eq!(only(1_240, "request"), "only 1,240 requests");
        assert_eq!(needed(1), "at least 1 is needed");
        assert_eq!(needed(1_240), "at least 1,240 are needed");
    }

    #[test]
    fn small_shares_and_latencies_have_more_decimals() {
        for (share, text) in [
            (0.0, "0.0%"),
            (0.003, "0.30%"),
            (0.01, "1.0%"),
            (1.0, "100.0%"),
        ] {
            assert_eq!(percent(share), text);
        }
        for (seconds, text) in [(0.0042, "4.2 ms"), (0.312, "312 ms"), (1.25, "1.25 s")] {
            assert_eq!(latency(seconds), text);
        }
    }

    #[test]
    fn a_duration_is_in_seconds_or_milliseconds() {
        for (millis, text) in [
            (250, "250 ms"),
            (1_500, "1.5 s"),
            (30_000, "30 s"),
            (1_800_000, "1,800 s"),
        ] {
            assert_eq!(seconds(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn every_third_digit_is_separated() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(thousands(number), text);
        }
    }
}
