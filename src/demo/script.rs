//! The script of the demo, as data: what happens when. Pure.

use std::time::Duration;

use crate::split::Generation;

/// The shortest useful demo, in seconds.
pub const SHORTEST: u64 = 5;
/// Length of the demo for which the pauses below are given, in seconds.
const FULL: f64 = 60.0;
/// The split changes in steps of this size, in percent.
const STRIDE: u8 = 5;
/// The generation that is killed, and the split at which it is.
const KILLED: Generation = Generation::New;
const KILL_AT: u8 = 50;
/// From the step to [`KILL_AT`] to the kill, in seconds of the full demo.
const BEFORE_KILL: f64 = 3.0;
/// How long the killed server is down, in seconds of the full demo, and the minimum: clients must have time to reach it.
const OUTAGE: f64 = 1.5;
const SHORTEST_OUTAGE: Duration = Duration::from_millis(400);

/// How long the demo stays at `percent`, in seconds of the full demo.
fn pause(percent: u8) -> f64 {
    match percent {
        0 => 3.0,
        25 | 75 => 4.0,
        KILL_AT => 9.0,
        100 => 8.0,
        _ => 2.0,
    }
}

/// An action of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sends this percentage to the new generation.
    Split(u8),
    /// Kills the model server of a generation.
    Kill(Generation),
    /// Starts it again.
    Restart(Generation),
}

/// An action and its time since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptStep {
    /// When.
    pub at: Duration,
    /// What.
    pub action: Action,
}

/// The state of the script at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScriptState {
    /// The wanted split, in percent.
    pub percent: u8,
    /// The generation last killed at this split, and its state.
    pub killed: Option<(Generation, ServerState)>,
}

/// The state of a killed server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// Killed this long ago.
    Down(Duration),
    /// Up again.
    Restarted,
}

/// The whole demo, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The actions.
    pub steps: Vec<ScriptStep>,
    /// Its total length.
    pub length: Duration,
}

impl Script {
    /// The demo, scaled to `seconds` but at least [`SHORTEST`].
    #[must_use]
    pub fn new(seconds: u64) -> Self {
        let length = Duration::from_secs(seconds.max(SHORTEST));
        let scaled = |full: f64| length.mul_f64(full / FULL);
        let mut steps = Vec::new();
        let mut begun = 0.0;
        for percent in (0..=100).step_by(usize::from(STRIDE)) {
            steps.push(ScriptStep {
                at: scaled(begun),
                action: Action::Split(percent),
            });
            if percent == KILL_AT {
                let killed_at = scaled(begun + BEFORE_KILL);
                let restarted_at = killed_at + scaled(OUTAGE).max(SHORTEST_OUTAGE);
                steps.push(ScriptStep {
                    at: killed_at,
                    action: Action::Kill(KILLED),
                });
                steps.push(ScriptStep {
                    at: restarted_at,
                    action: Action::Restart(KILLED),
                });
            }
            begun += pause(percent);
        }
        Self { steps, length }
    }

    /// Most tokens per response, so that responses are short compared with the demo.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        (self.length.as_secs() * 4).clamp(30, 120)
    }

    /// The state `elapsed` after the start.
    #[must_use]
    pub fn state(&self, elapsed: Duration) -> ScriptState {
        let past = self.steps.iter().take_while(|step| step.at <= elapsed);
        past.fold(ScriptState::default(), |now, step| match step.action {
            Action::Split(percent) => ScriptState {
                percent,
                killed: None,
            },
            Action::Kill(killed) => ScriptState {
                killed: Some((killed, ServerState::Down(elapsed.saturating_sub(step.at)))),
                ..now
            },
            Action::Restart(killed) => ScriptState {
                killed: Some((killed, ServerState::Restarted)),
                ..now
            },
        })
    }

    /// The outages: start and end of each.
    pub fn outages(&self) -> impl Iterator<Item = (Duration, Duration)> {
        let at = |wanted: fn(&Action) -> bool| {
            self.steps
                .iter()
                .filter(move |step| wanted(&step.action))
                .map(|step| step.at)
        };
        at(|action| matches!(action, Action::Kill(_)))
            .zip(at(|action| matches!(action, Action::Restart(_))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_split_only_rises_from_nothing_to_all_and_time_only_continues() {
        for seconds in [0, 5, 7, 20, 60, 3600] {
            let script = Script::new(seconds);
            assert!(
                script.steps.windows(2).all(|pair| pair[0].at < pair[1].at),
                "{seconds} s"
            );
            assert!(script.steps.iter().all(|step| step.at < script.length));
            let splits: Vec<u8> = script
                .steps
                .iter()
                .filter_map(|step| match step.action {
                    Action::Split(percent) => Some(percent),
                    _ => None,
                })
                .collect();
            assert_eq!((splits[0], *splits.last().unwrap()), (0, 100));
            assert!(splits.windows(2).all(|pair| pair[1] - pair[0] == STRIDE));
        }
    }

    #[test]
    fn the_pauses_fill_the_whole_time() {
        let sum: f64 = (0..=100).step_by(usize::from(STRIDE)).map(pause).sum();
        assert!((sum - FULL).abs() < 1e-9, "{sum}");
    }

    #[test]
    fn another_length_moves_every_step_in_proportion() {
        let (full, half) = (Script::new(60), Script::new(30));
        for (full, half) in full.steps.iter().zip(&half.steps) {
            assert_eq!(full.action, half.action);
            assert!((full.at.as_secs_f64() / 2.0 - half.at.as_secs_f64()).abs() < 1e-6);
        }
    }

    #[test]
    fn a_demo_too_short_to_show_anything_takes_the_shortest_time() {
        assert_eq!(Script::new(0), Script::new(SHORTEST));
    }

    #[test]
    fn the_killed_server_is_down_briefly_half_way_through() {
        let script = Script::new(60);
        let (killed_at, back) = script.outages().next().unwrap();
        assert_eq!(back - killed_at, Duration::from_millis(1500));
        let at = |time| script.state(time);
        let before = at(killed_at - Duration::from_millis(1));
        assert_eq!(
            before,
            ScriptState {
                percent: KILL_AT,
                killed: None
            }
        );
        let dead = at(killed_at + Duration::from_secs(1));
        assert_eq!(
            dead.killed,
            Some((KILLED, ServerState::Down(Duration::from_secs(1))))
        );
        assert_eq!(at(back).killed, Some((KILLED, ServerState::Restarted)));
        assert_eq!(
            at(script.length),
            ScriptState {
                percent: 100,
                killed: None
            }
        );
    }
}
