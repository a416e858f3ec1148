//! Quantities as Kubernetes writes them, such as `500m`, `1.5` or `16Gi` (apimachinery, `pkg/api/resource`).

use serde_json::Value as Json;

/// A quantity in thousandths, rounded up. `None` if the value is not a quantity. The largest number if it is too large.
#[must_use]
pub fn thousandths(value: &Json) -> Option<u64> {
    let number = value.as_number().map(ToString::to_string);
    of_text(number.as_deref().or_else(|| value.as_str())?)
}

fn of_text(text: &str) -> Option<u64> {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && part.is_empty() || part.contains('.') {
        return None;
    }
    // The digits after the ninth decimal place amount to less than a thousandth, with any suffix of a realistic quantity.
    let part = &part[..part.len().min(9)];
    // These are digits, so the only possible error is that there are too many.
    let digits = format!("{whole}{part}").parse().unwrap_or(u128::MAX);
    let (base, exponent) = unit(suffix)?;
    let places = u32::try_from(part.len()).ok()?;
    let divisor = 10_u128.pow(places);
    let scaled = match u32::try_from(exponent) {
        Ok(exponent) => {
            let factor = base.checked_pow(exponent)?;
            digits
                .saturating_mul(1000)
                .saturating_mul(factor)
                .div_ceil(divisor)
        }
        Err(_) => {
            let below = base.checked_pow(exponent.unsigned_abs())?;
            digits
                .saturating_mul(1000)
                .div_ceil(divisor.saturating_mul(below))
        }
    };
    Some(u64::try_from(scaled).unwrap_or(u64::MAX))
}

/// The base and the exponent that a suffix stands for.
fn unit(suffix: &str) -> Option<(u128, i32)> {
    let exponent = |text: &str| {
        text.parse()
            .ok()
            .filter(|exponent: &i32| exponent.abs() <= 18)
    };
    Some(match suffix {
        "n" => (1000, -3),
        "u" => (1000, -2),
        "m" => (1000, -1),
        "" => (1000, 0),
        "k" => (1000, 1),
        "M" => (1000, 2),
        "G" => (1000, 3),
        "T" => (1000, 4),
        "P" => (1000, 5),
        "E" => (1000, 6),
        "Ki" => (1024, 1),
        "Mi" => (1024, 2),
        "Gi" => (1024, 3),
        "Ti" => (1024, 4),
        "Pi" => (1024, 5),
        "Ei" => (1024, 6),
        _ => (10, exponent(suffix.strip_prefix(['e', 'E'])?)?),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities_are_read_as_the_api_server_reads_them() {
        for (text, expected) in [
            ("0", Some(0)),
            ("500m", Some(500)),
            ("1.5", Some(1500)),
            (".5", Some(500)),
            ("2.", Some(2000)),
            ("100u", Some(1)),
            ("1n", Some(1)),
            ("2k", Some(2_000_000)),
            ("1Ki", Some(1_024_000)),
            ("1.5Gi", Some(1_610_612_736_000)),
            ("1e3", Some(1_000_000)),
            ("1E-3", Some(1)),
            ("1E", Some(u64::MAX)),
            ("9999999999999999999999999999999999999", Some(u64::MAX)),
            (
                "99999999999999999999999999999999999999999999",
                Some(u64::MAX),
            ),
            ("1.0000000000000000000001", Some(1000)),
            ("", None),
            (".", None),
            ("Gi", None),
            ("1.2.3", None),
            ("-1", None),
            ("1ki", None),
            ("1e99", None),
        ] {
            assert_eq!(thousandths(&json!(text)), expected, "{text}");
        }
        assert_eq!(thousandths(&json!(2)), Some(2000));
        assert_eq!(thousandths(&json!(0.5)), Some(500));
        assert_eq!(thousandths(&Json::Null), None);
    }
}
