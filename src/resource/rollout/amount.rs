//! A number of units, or a percentage of all units, like `maxSurge` of a Deployment.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::rules::{self, MAX_COUNT};

/// A number such as 1, or a percentage such as `25%`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AmountSpec {
    /// A number of units.
    Count(u32),
    /// A percentage with the percent sign.
    Percent(String),
}

/// A parsed amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// A number of units.
    Count(u32),
    /// A percentage.
    Percent(u32),
}

impl AmountSpec {
    /// The amount; `None` if it is invalid.
    #[must_use]
    pub fn read(&self) -> Option<Amount> {
        match self {
            Self::Count(count) => (*count <= MAX_COUNT).then_some(Amount::Count(*count)),
            Self::Percent(text) => {
                let digits = text.strip_suffix('%')?;
                let is_plain =
                    digits.len() <= 3 && digits.bytes().all(|byte| byte.is_ascii_digit());
                let percent = digits.parse().ok().filter(|percent| *percent <= 100)?;
                is_plain.then_some(Amount::Percent(percent))
            }
        }
    }

    /// Whether it is 0 or `0%`.
    #[must_use]
    pub fn is_none(&self) -> bool {
        matches!(self.read(), Some(Amount::Count(0) | Amount::Percent(0)))
    }
}

impl fmt::Display for AmountSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => count.fmt(f),
            Self::Percent(text) => f.write_str(text),
        }
    }
}

impl JsonSchema for AmountSpec {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": 4,
            "x-kubernetes-validations": rules::amount(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_a_number_or_a_percentage() {
        let percent = |text: &str| AmountSpec::Percent(text.to_owned()).read();
        assert_eq!(AmountSpec::Count(3).read(), Some(Amount::Count(3)));
        assert_eq!(AmountSpec::Count(MAX_COUNT + 1).read(), None);
        assert_eq!(percent("0%"), Some(Amount::Percent(0)));
        assert_eq!(percent("100%"), Some(Amount::Percent(100)));
        for wrong in ["101%", "1", "%", "+1%", "-1%", "1.5%", "0001%", "", "many"] {
            assert_eq!(percent(wrong), None, "{wrong}");
        }
    }
}
