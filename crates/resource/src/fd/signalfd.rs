//! Saves and restores signal file descriptors, created with signalfd(2): the descriptor kind `fd/signalfd`.
//!
//! Owns: the signal mask of a signalfd.
//! Invariants: the restored mask is the mask in the pause.
//! Does not: save pending signals, which are state of processes and threads; [`crate::state`] does.

use prost::Message;

use super::description::{Description, Known};
use super::fdinfo::FdInfo;
use super::kind::{FdCapture, FdCreate, FdFacts, FdKind, FdRecord};
use super::scope::CaptureScope;
use crate::error::Result;

const NAME: &str = "fd/signalfd";

/// Descriptor kind ([`FdKind`]) of signal file descriptors.
#[derive(Debug)]
pub struct Signalfd;

#[derive(Clone, PartialEq, Eq, Message)]
struct State {
    #[prost(uint64, tag = "1")]
    signals: u64,
}

#[derive(Debug, Default)]
struct Capture {
    info: FdInfo,
}

impl FdKind for Signalfd {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<State>(NAME).without_files()
    }

    fn claims(&self, description: &Description) -> bool {
        description.target() == "anon_inode:[signalfd]"
    }

    fn prepare(&self, _description: &Description, _scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        Ok(Box::<Capture>::default())
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        context.make_each(NAME, records, |state: State, _, _| Ok(sys::signalfd::create(state.signals)?))
    }
}

impl FdCapture for Capture {
    fn fdinfo_read(&mut self, text: &[u8]) {
        self.info.set(text);
    }

    fn inside(&mut self, description: &Description) -> Result<()> {
        self.info.take(description)
    }

    fn after(&mut self, _description: &Known) -> Result<Vec<u8>> {
        let signals = self.info.parse("sigmask", |text| u64::from_str_radix(text, 16).ok())?;
        Ok(State { signals }.encode_to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{describe, round_trip};
    use super::*;

    #[test]
    fn the_mask_is_restored() {
        let mask = 1 << 9 | 1 << 63;
        let copy = round_trip(&Signalfd, sys::signalfd::create(mask).unwrap());
        let mut info = FdInfo::default();
        info.take(&copy).unwrap();
        assert_eq!(info.line("sigmask"), Some("8000000000000200"));
    }

    #[test]
    fn a_missing_line_is_an_error_and_other_kinds_are_not_claimed() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let description = describe(0, &file);
        assert!(!Signalfd.claims(&description));
        let mut capture = Capture::default();
        capture.inside(&description).unwrap();
        assert!(capture.after(&description).unwrap_err().to_string().contains("sigmask"));
    }
}
