//! The text of each generation. A client can tell from the text alone which generation it came from and whether a word is
//! missing. Pure.

use std::iter::Cycle;
use std::str::SplitInclusive;

use crate::split::Generation;

/// Ends with a space, so that the words can be repeated.
const OLD: &str = "Ahoy, this is the old generation at the wheel. I have steered these waters for many a winter, and \
    every sentence that I begin I mean to finish, however high the sea, until the last passenger is ashore. ";
const NEW: &str = "Hello! The new generation speaking, fresh from the launch pad. All engines read green, the sky is \
    wide open, and whoever boards from here on will hear my voice from the first word to the last one. ";

/// The endless words of a generation, one token each.
pub(super) type Words = Cycle<SplitInclusive<'static, char>>;

/// The words of `generation`, from the start.
pub(super) fn words(generation: Generation) -> Words {
    let text = match generation {
        Generation::Old => OLD,
        Generation::New => NEW,
    };
    text.split_inclusive(' ').cycle()
}

/// The words that follow `text`, if it is the start of a generation's text, and that generation.
pub(super) fn after(text: &str) -> Option<(Generation, Words)> {
    Generation::ALL.into_iter().find_map(|generation| {
        let (mut words, mut rest) = (words(generation), text);
        while !rest.is_empty() {
            rest = rest.strip_prefix(words.next()?)?;
        }
        (!text.is_empty()).then_some((generation, words))
    })
}

/// Checks one response word by word.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    generation: Option<(Generation, Words)>,
    garbled: bool,
}

impl Transcript {
    /// Adds the next token.
    pub(super) fn push(&mut self, token: &str) {
        if let Some((_, expected)) = &mut self.generation {
            self.garbled |= expected.next() != Some(token);
            return;
        }
        self.generation = Generation::ALL.into_iter().find_map(|generation| {
            let mut words = words(generation);
            (words.next() == Some(token)).then_some((generation, words))
        });
        self.garbled |= self.generation.is_none();
    }

    /// The generation whose words these are; `None` before the first.
    pub(super) fn generation(&self) -> Option<Generation> {
        self.generation.as_ref().map(|(generation, _)| *generation)
    }

    /// No word so far is missing, repeated or from the other generation.
    pub(super) fn is_complete(&self) -> bool {
        self.generation.is_some() && !self.garbled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript_of<'a>(tokens: impl Iterator<Item = &'a str>) -> Transcript {
        let mut transcript = Transcript::default();
        tokens.for_each(|token| transcript.push(token));
        transcript
    }

    #[test]
    fn each_generation_is_recognized_by_its_words() {
        for generation in Generation::ALL {
            let transcript = transcript_of(words(generation).take(100));
            assert_eq!(transcript.generation(), Some(generation));
            assert!(transcript.is_complete());
        }
    }

    #[test]
    fn a_text_is_continued_in_its_style_from_where_it_ends() {
        for generation in Generation::ALL {
            for sent in [1, 7, 100] {
                let text: String = words(generation).take(sent).collect();
                let (found, rest) = after(&text).unwrap();
                assert_eq!(found, generation);
                let expected: Vec<_> = words(generation).skip(sent).take(50).collect();
                assert_eq!(rest.take(50).collect::<Vec<_>>(), expected);
            }
        }
        assert!(after("").is_none() && after("Bonjour ").is_none());
        assert!(
            after("Hello! The n").is_none(),
            "a token has no end of its own"
        );
    }

    #[test]
    fn a_word_lost_or_doubled_or_of_the_other_generation_is_noticed() {
        let old = || words(Generation::Old);
        assert!(!transcript_of(old().take(3).chain(old().skip(4).take(3))).is_complete());
        assert!(!transcript_of(old().take(3).chain(old().skip(2).take(3))).is_complete());
        assert!(
            !transcript_of(old().take(3).chain(words(Generation::New).skip(3).take(3)))
                .is_complete()
        );
        assert!(!transcript_of(["Bonjour"].into_iter()).is_complete());
        assert!(!transcript_of([].into_iter()).is_complete());
    }
}
