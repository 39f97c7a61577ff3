//! How long checkpoints and restores took.
//!
//! Owns: collecting and printing them.
//! Does not: judge; a loaded machine may be slow.

use std::time::Duration;

/// The durations of all rounds of one program.
#[derive(Default)]
pub(crate) struct Figures {
    checkpoints: Vec<Duration>,
    restores: Vec<Duration>,
}

impl Figures {
    /// One round: each command from its start to its end.
    pub(crate) fn add(&mut self, checkpoint: Duration, restore: Duration) {
        self.checkpoints.push(checkpoint);
        self.restores.push(restore);
    }

    /// For example `redis: 20 rounds; checkpoint 41 ms (max 80), restore 23 ms (max 60)`; medians.
    pub(crate) fn line(&self, name: &str) -> Option<String> {
        let rounds = self.checkpoints.len();
        let (checkpoint, restore) = (spread(&self.checkpoints)?, spread(&self.restores)?);
        Some(format!("{name}: {rounds} rounds; checkpoint {checkpoint}, restore {restore}"))
    }
}

fn spread(durations: &[Duration]) -> Option<String> {
    let mut sorted = durations.to_vec();
    sorted.sort();
    let (median, longest) = (sorted.get(sorted.len() / 2)?, sorted.last()?);
    Some(format!("{} ms (max {})", median.as_millis(), longest.as_millis()))
}
