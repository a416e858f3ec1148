//! What each generation says, and how a listener tells by the text alone who speaks and whether a word is missing.
//!
//! Pure. Must not know how the words travel.

use std::iter::Cycle;
use std::str::SplitInclusive;

use crate::split::Generation;

/// Ends with a space, so that the words can be said over and over.
const OLD: &str = "Ahoy, this is the old generation at the wheel. I have steered these waters for many a winter, and \
    every sentence that I begin I mean to finish, however high the sea, until the last passenger is ashore. ";
const NEW: &str = "Hello! The new generation speaking, fresh from the launch pad. All engines read green, the sky is \
    wide open, and whoever boards from here on will hear my voice from the first word to the last one. ";

/// The endless words of one generation, one token each.
pub(super) type Words = Cycle<SplitInclusive<'static, char>>;

/// What `generation` says, from the beginning.
pub(super) fn words(generation: Generation) -> Words {
    let text = match generation {
        Generation::Old => OLD,
        Generation::New => NEW,
    };
    text.split_inclusive(' ').cycle()
}

/// Follows one answer word by word.
#[derive(Debug, Default)]
pub(super) struct Listener {
    speaker: Option<(Generation, Words)>,
    garbled: bool,
}

impl Listener {
    /// Takes the next token as it came.
    pub(super) fn hear(&mut self, token: &str) {
        if let Some((_, expected)) = &mut self.speaker {
            self.garbled |= expected.next() != Some(token);
            return;
        }
        self.speaker = Generation::ALL.into_iter().find_map(|generation| {
            let mut words = words(generation);
            (words.next() == Some(token)).then_some((generation, words))
        });
        self.garbled |= self.speaker.is_none();
    }

    /// Whose words these are; `None` before the first.
    pub(super) fn speaker(&self) -> Option<Generation> {
        self.speaker.as_ref().map(|(generation, _)| *generation)
    }

    /// True while no word was missing, said twice, or another speaker's.
    pub(super) fn is_whole(&self) -> bool {
        self.speaker.is_some() && !self.garbled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard<'a>(tokens: impl Iterator<Item = &'a str>) -> Listener {
        let mut listener = Listener::default();
        tokens.for_each(|token| listener.hear(token));
        listener
    }

    #[test]
    fn each_generation_is_known_by_its_words() {
        for generation in Generation::ALL {
            let listener = heard(words(generation).take(100));
            assert_eq!(listener.speaker(), Some(generation));
            assert!(listener.is_whole());
        }
    }

    #[test]
    fn a_word_lost_or_doubled_or_of_the_other_generation_is_noticed() {
        let old = || words(Generation::Old);
        assert!(!heard(old().take(3).chain(old().skip(4).take(3))).is_whole());
        assert!(!heard(old().take(3).chain(old().skip(2).take(3))).is_whole());
        assert!(!heard(old().take(3).chain(words(Generation::New).skip(3).take(3))).is_whole());
        assert!(!heard(["Bonjour"].into_iter()).is_whole());
        assert!(!heard([].into_iter()).is_whole());
    }
}
