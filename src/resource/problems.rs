//! What is wrong with a manifest: every problem at once, each with its field and line.
//!
//! Must not know what makes a manifest wrong.

use std::fmt;

use crate::printable::printable;

/// One thing that is wrong, for a person to correct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field, as `spec.affinity.headers[1]`; empty when the text as a whole is meant.
    pub path: String,
    /// The line of the file, from 1; none when there is no file.
    pub line: Option<usize>,
    /// What is wrong and, where it can be said, what would be right.
    pub message: String,
}

impl Problem {
    /// A problem of the field at `path`, not (yet) found in a file.
    pub(super) fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            line: None,
            message: message.into(),
        }
    }

    /// The same, found on `line`.
    pub(super) fn at(mut self, line: Option<usize>) -> Self {
        self.line = line;
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", printable(&self.path))?;
        }
        printable(&self.message).fmt(f)
    }
}

/// All that is wrong with one manifest, in the order of its lines.
///
/// As an error it displays one problem per line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many things are wrong.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The problems, in the order of their lines.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.0.iter()
    }

    /// A single problem that has no line.
    #[must_use]
    pub fn one(path: &str, message: impl Into<String>) -> Self {
        let mut problems = Self::default();
        problems.push(Problem::new(path, message));
        problems
    }

    pub(super) fn push(&mut self, problem: Problem) {
        self.0.push(problem);
    }

    /// In the order of lines; problems of one line stay as they were found.
    pub(super) fn sort(&mut self) {
        self.0.sort_by_key(|problem| problem.line);
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

impl<'a> IntoIterator for &'a Problems {
    type Item = &'a Problem;
    type IntoIter = std::slice::Iter<'a, Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl IntoIterator for Problems {
    type Item = Problem;
    type IntoIter = std::vec::IntoIter<Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
