//! Terminals.
//!
//! Owns: nothing yet.
//! Does not: save terminals yet.

use std::os::fd::AsFd;

use rustix::fs::{FileType, major, minor};

use super::{CaptureScope, Constant, Description, FdCapture, FdCreate, FdKind, FdRecord};
use crate::error::Result;
use crate::obstacle::Obstacle;

/// The kind.
#[derive(Clone, Copy, Debug)]
pub struct Tty;

/// Whether a description is of a terminal.
pub(super) fn is_terminal(description: &Description) -> bool {
    let number = description.stat.st_rdev;
    FileType::from_raw_mode(description.stat.st_mode) == FileType::CharacterDevice
        && (matches!((major(number), minor(number)), (136..=143, _) | (5, 0..=2))
            || sys::terminal::modes(description.as_fd()).is_ok())
}

impl FdKind for Tty {
    fn name(&self) -> &'static str {
        "fd/tty"
    }

    fn summary(&self) -> &'static str {
        "terminals"
    }

    fn claims(&self, description: &Description) -> bool {
        is_terminal(description)
    }

    fn obstacles(&self, description: &Description, _scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        vec![description.obstacle("terminal", "terminals are not saved yet", "redirect it")]
    }

    fn prepare(&self, _description: &Description, _scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        Ok(Box::new(Constant(Vec::new())))
    }

    fn create(&self, _records: &[FdRecord], _context: &mut FdCreate<'_>) -> Result<()> {
        Ok(())
    }
}
