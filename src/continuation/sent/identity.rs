//! The fields that identify a stream, in one allocation: thousands of streams keep them.

/// Fields of a chunk that identify a stream.
pub(super) const FIELDS: [&str; 4] = ["id", "created", "model", "system_fingerprint"];

/// Where the model and the fingerprint are among them.
pub(super) const MODEL: usize = 2;
pub(super) const FINGERPRINT: usize = 3;

/// Most bytes kept of these fields.
const MOST: usize = 512;

/// The values of [`FIELDS`], as JSON.
#[derive(Debug, Default)]
pub(super) struct Identity {
    /// One after another.
    values: Box<[u8]>,
    /// `None` for a field that the stream does not have.
    lengths: [Option<u16>; FIELDS.len()],
}

impl Identity {
    /// `None` if the values are too long.
    pub(super) fn of(values: [Option<&[u8]>; FIELDS.len()]) -> Option<Self> {
        let all = values.into_iter().flatten().collect::<Vec<_>>().concat();
        if all.len() > MOST {
            return None;
        }
        let lengths = values.map(|value| u16::try_from(value?.len()).ok());
        Some(Self {
            values: all.into(),
            lengths,
        })
    }

    /// The length of all values.
    pub(super) const fn len(&self) -> usize {
        self.values.len()
    }

    /// The values, in the order of [`FIELDS`].
    pub(super) fn values(&self) -> [Option<&[u8]>; FIELDS.len()] {
        let mut rest = &self.values[..];
        self.lengths.map(|length| {
            let (value, after) = rest.split_at_checked(length?.into())?;
            rest = after;
            Some(value)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_has_its_value_or_none() {
        for values in [
            [None; 4],
            [Some(&b"\"a\""[..]), Some(b"1"), Some(b"\"m\""), None],
            [None, Some(b""), None, Some(b"\"f\"")],
        ] {
            let identity = Identity::of(values).expect("short");
            assert_eq!(identity.values(), values);
        }
        let long = [b'x'; MOST];
        assert!(Identity::of([Some(&long), None, None, None]).is_some());
        assert!(Identity::of([Some(&long), Some(b"1"), None, None]).is_none());
    }
}
