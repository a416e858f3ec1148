//! All problems of a manifest, each with its field and line.

use std::fmt;

use crate::printable::printable;

/// A single problem, for the author to correct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field, such as `spec.affinity.headers[1]`; empty if the problem is with the text as a whole.
    pub path: String,
    /// The line in the file, from 1; `None` if there is no file.
    pub line: Option<usize>,
    /// What is wrong and, if known, what a valid value would be.
    pub message: String,
}

impl Problem {
    /// A problem of the field at `path`, without a line.
    pub(super) fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            line: None,
            message: message.into(),
        }
    }

    /// Sets the line.
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

/// All problems of a manifest, in the order of their lines.
///
/// `Display` prints one problem per line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Iterates over the problems, in the order of their lines.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.0.iter()
    }

    /// A single problem without a line.
    #[must_use]
    pub fn one(path: &str, message: impl Into<String>) -> Self {
        let mut problems = Self::default();
        problems.push(Problem::new(path, message));
        problems
    }

    /// Whether there is only one, which is with the file as a whole.
    #[must_use]
    pub fn is_of_file(&self) -> bool {
        matches!(&self.0[..], [problem] if problem.path.is_empty() && problem.line.is_none())
    }

    pub(super) fn push(&mut self, problem: Problem) {
        self.0.push(problem);
    }

    /// Sorts by line, and keeps the order of problems on the same line.
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
