//! Durations as users write them: plain seconds, such as `90` or `1.5`, or numbers with units, such as `2h`, `1m30s`, or `500ms`.
//!
//! The units are `d`, `h`, `m`, `s`, and `ms`, from the longest to the shortest, each at most once. Only the last number may have a
//! fraction.

use std::ops::RangeInclusive;

/// Parses a duration, in seconds.
///
/// # Errors
/// When it is neither a number nor a form such as `1m30s`, or not from `least` to `most` seconds.
pub fn between(text: &str, least: f64, most: f64) -> Result<f64, String> {
    let seconds = seconds(text)?;
    match (least..=most).contains(&seconds) {
        true => Ok(seconds),
        false => Err(format!("must be between {least} and {most} seconds")),
    }
}

/// The same in whole seconds.
///
/// # Errors
/// Also when it has a fraction of a second.
pub fn whole_seconds(text: &str, range: RangeInclusive<u32>) -> Result<u64, String> {
    let seconds = between(text, (*range.start()).into(), (*range.end()).into())?;
    match seconds.fract() == 0.0 {
        true => Ok(seconds as u64),
        false => Err("must be a whole number of seconds".to_owned()),
    }
}

/// The units with their lengths in seconds.
const UNITS: [(&str, f64); 5] = [
    ("d", 86_400.0),
    ("h", 3600.0),
    ("m", 60.0),
    ("s", 1.0),
    ("ms", 0.001),
];

fn seconds(text: &str) -> Result<f64, String> {
    // A negative duration is out of every range, which the error then names.
    let (sign, size) = match text.strip_prefix('-') {
        Some(size) => (-1.0, size),
        None => (1.0, text),
    };
    let seconds = number(size).or_else(|| sum(size));
    seconds.map(|seconds| sign * seconds).ok_or_else(|| {
        "is not a duration; use seconds, or a form such as 5s, 1m30s, 2h, or 500ms (units: d, h, m, s, ms)".to_owned()
    })
}

/// Digits, with or without a fraction.
fn number(text: &str) -> Option<f64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_digits(whole) && is_digits(fraction)).then(|| text.parse().ok())?
}

/// The sum of numbers with units.
fn sum(text: &str) -> Option<f64> {
    let mut units = UNITS.iter();
    let (mut seconds, mut rest) = (0.0, text);
    loop {
        let (amount, after) = rest.split_at(rest.find(|c: char| c.is_ascii_lowercase())?);
        let length = after.find(|c: char| !c.is_ascii_lowercase());
        let (unit, next) = after.split_at(length.unwrap_or(after.len()));
        let (_, length) = units.find(|(name, _)| *name == unit)?;
        seconds += number(amount)? * length;
        if next.is_empty() {
            // Hides the rounding errors of the units, so that whole seconds remain whole.
            return Some((seconds * 1e9).round() / 1e9);
        }
        if amount.contains('.') {
            return None;
        }
        rest = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_units_are_the_same_duration() {
        for text in ["90", "90.0", "90s", "1m30s", "1.5m", "1m30.0s", "90000ms"] {
            assert_eq!(between(text, 0.0, 100.0), Ok(90.0), "{text}");
            assert_eq!(whole_seconds(text, 5..=100), Ok(90), "{text}");
        }
        for (text, meant) in [
            ("500ms", 0.5),
            ("1s500ms", 1.5),
            ("1.1m", 66.0),
            ("2h", 7200.0),
            ("1d", 86_400.0),
            ("1d2h3m4s", 93_784.0),
        ] {
            assert_eq!(between(text, 0.0, 100_000.0), Ok(meant), "{text}");
        }
        for wrong in ["101", "2m", "-1", "-1s"] {
            let error = between(wrong, 0.0, 100.0).unwrap_err();
            assert_eq!(error, "must be between 0 and 100 seconds", "{wrong}");
        }
    }

    #[test]
    fn only_the_documented_forms_are_durations() {
        for wrong in [
            "nan", "inf", "1x", "s", "1m30", "", "-", "--1", "+5", "1e3", ".5", "5.", "1.5.",
            "5 s", " 5", "5S", "1 hour", "1hr", "PT1H", "1s ago", "30s1m", "1s1s", "1.5m30s", "1w",
            "1m 30s", "1m,30s", "1_000", "１s",
        ] {
            let error = between(wrong, 0.0, 1e9).unwrap_err();
            assert!(
                error.starts_with("is not a duration; use seconds"),
                "{wrong}: {error}"
            );
        }
    }

    #[test]
    fn whole_seconds_have_no_fraction() {
        for wrong in ["4", "1m41s", "5.5", "5500ms"] {
            assert!(whole_seconds(wrong, 5..=100).is_err(), "{wrong}");
        }
    }
}
