//! The text form of the state of a subject.
//!
//! Owns: the words for states and rates, and the line about an unprotected subject.
//! Does not: read a status.

use guardian::{SubjectReport, SubjectState};

use crate::failure::Failure;
use crate::print;

/// Returns the text of the state column.
pub(crate) fn state(subject: &SubjectReport) -> String {
    if let Some(component) = &subject.component {
        return component.state.clone();
    }
    let is_unprotected = subject.unprotected_because.is_some();
    if is_unprotected { SubjectState::Unprotected } else { subject.state }.to_string()
}

/// Prints a line for each subject that cannot be restored from a checkpoint.
pub(crate) fn tell_unprotected(found: &[SubjectReport]) -> Result<(), Failure> {
    for subject in found {
        if let Some(reason) = &subject.unprotected_because {
            print::line(format_args!("{}: unprotected, because {reason}", subject.facts.name))?;
        }
    }
    Ok(())
}

/// Formats the achieved and the requested rate of checkpoints.
pub(crate) fn rate(subject: &SubjectReport) -> String {
    if subject.state.is_over() || subject.facts.requested_hz == 0.0 {
        return "-".to_owned();
    }
    // With one digit, a rate below one checkpoint in ten seconds would be shown as 0.0.
    let digits = if subject.facts.requested_hz < 0.1 { 3 } else { 1 };
    let requested = subject.facts.requested_hz;
    match subject.facts.achieved_hz {
        // Before the second checkpoint, the rate is unknown.
        0.0 => format!("-/{requested:.digits$} Hz"),
        achieved => format!("{achieved:.digits$}/{requested:.digits$} Hz"),
    }
}
