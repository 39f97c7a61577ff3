//! Checkpoints that turn out not to be exact.
//!
//! The capture of a checkpoint can stop the subject several times. Each pause is a boundary of the same checkpoint, and
//! only the last of these boundaries decides.
//!
//! Owns: the record that cancels the earlier boundaries of a checkpoint.
//! Does not: decide whether a boundary is exact.

use model::Sequence;

use super::{UndoLog, record};
use crate::error::Result;

impl UndoLog {
    /// Records that checkpoint `sequence` is not exact. Writes nothing if no epoch lists the checkpoint.
    pub fn retract(&mut self, sequence: Sequence) -> Result<()> {
        if self.epochs.iter().all(|epoch| !epoch.sequences.contains(&sequence)) {
            return Ok(());
        }
        self.append(&record::Retracted { sequence: sequence.get() }, &[])?;
        for epoch in &mut self.epochs {
            epoch.sequences.retain(|one| *one != sequence);
        }
        Ok(())
    }
}
