//! How the state of a subject is written, wherever it is shown.
//!
//! Owns: the words for states and rates, the line about a subject that is not protected.
//! Does not: read a status.

use guardian::{SubjectReport, SubjectState};

use crate::failure::Failure;
use crate::print;

/// What the column for the state shows.
pub(crate) fn state(subject: &SubjectReport) -> String {
    if let Some(component) = &subject.component {
        return component.state.clone();
    }
    let is_unprotected = subject.unprotected_because.is_some();
    if is_unprotected { SubjectState::Unprotected } else { subject.state }.to_string()
}

/// Prints a line for each subject that would not come back from a checkpoint.
pub(crate) fn tell_unprotected(found: &[SubjectReport]) -> Result<(), Failure> {
    for subject in found {
        if let Some(reason) = &subject.unprotected_because {
            print::line(format_args!("{}: unprotected, because {reason}", subject.facts.name))?;
        }
    }
    Ok(())
}

/// The achieved rate of checkpoints beside the requested one.
pub(crate) fn rate(subject: &SubjectReport) -> String {
    if subject.state.is_over() || subject.facts.requested_hz == 0.0 {
        return "-".to_owned();
    }
    // Less than one in ten seconds would be 0.0.
    let digits = if subject.facts.requested_hz < 0.1 { 3 } else { 1 };
    format!("{:.digits$}/{:.digits$} Hz", subject.facts.achieved_hz, subject.facts.requested_hz)
}
