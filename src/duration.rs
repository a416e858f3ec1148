//! Durations as users write them: plain seconds, or numbers with units.

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

fn seconds(text: &str) -> Result<f64, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let duration: Result<jiff::SignedDuration, _> = text.parse();
    duration
        .map(|duration| duration.as_secs_f64())
        .map_err(|_| {
            "is not a duration; use seconds, or a form such as 5s, 1m30s, or 500ms".to_owned()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_units_are_the_same_duration() {
        for text in ["90", "90.0", "90s", "1m30s", "1.5m"] {
            assert_eq!(between(text, 0.0, 100.0), Ok(90.0), "{text}");
            assert_eq!(whole_seconds(text, 5..=100), Ok(90), "{text}");
        }
        assert_eq!(between("500ms", 0.0, 100.0), Ok(0.5));
        for wrong in [
            "101", "2m", "-1", "-1s", "nan", "inf", "1x", "s", "1m30", "",
        ] {
            assert!(between(wrong, 0.0, 100.0).is_err(), "{wrong}");
        }
        for wrong in ["4", "1m41s", "5.5", "5500ms"] {
            assert!(whole_seconds(wrong, 5..=100).is_err(), "{wrong}");
        }
    }
}
