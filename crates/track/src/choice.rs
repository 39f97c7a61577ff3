//! The selection of a tracker.
//!
//! Owns: the registry, in the order of preference, and the call of the self-test.
//! Invariants: a tracker that has failed its self-test is never selected.
//! Does not: inspect the process to be tracked.

use std::path::Path;

use sys::features::{self, FeatureEntry};

use crate::error::TrackError;
use crate::full::Full;
use crate::pagemap_scan::PagemapScan;
use crate::soft_dirty::SoftDirty;
use crate::tracker::TrackerKind;

/// All trackers, in the order of preference.
pub const REGISTRY: &[&dyn TrackerKind] = &[&PagemapScan, &SoftDirty, &Full];

/// The name that selects the best usable tracker.
pub const AUTO: &str = "auto";

/// A tracker that is usable on this kernel.
#[derive(Debug)]
pub struct Choice {
    /// The selected tracker.
    pub kind: &'static dyn TrackerKind,
    /// The errors of the preferred trackers that are unusable.
    pub passed_over: Vec<TrackError>,
}

/// Returns the tracker with this name. For `auto`, returns the first usable tracker in the order of
/// preference.
pub fn choose(name: &str) -> Result<Choice, TrackError> {
    let mut passed_over = Vec::new();
    for kind in REGISTRY {
        let wanted = if name == AUTO { kind.properties().automatic } else { kind.name() == name };
        if wanted {
            match check(*kind) {
                Ok(()) => return Ok(Choice { kind: *kind, passed_over }),
                Err(error) if name == AUTO => passed_over.push(error),
                Err(error) => return Err(error),
            }
        }
    }
    let names: Vec<&str> = [AUTO].into_iter().chain(REGISTRY.iter().map(|kind| kind.name())).collect();
    Err(TrackError::UnknownName { name: name.to_owned(), known: names.join(", ") })
}

/// Returns the next usable tracker after `failed` in the order of preference, among those that `auto` can
/// select. `None` if there is no such tracker.
#[must_use]
pub fn next_best(failed: &'static dyn TrackerKind) -> Option<&'static dyn TrackerKind> {
    let worse = REGISTRY.iter().skip_while(|kind| kind.name() != failed.name()).skip(1);
    worse.copied().find(|kind| kind.properties().automatic && check(*kind).is_ok())
}

fn check(kind: &'static dyn TrackerKind) -> Result<(), TrackError> {
    // A feature that is forced off is reported before any probe runs, so that the result is the same on every
    // kernel.
    if let Some(entry) = entries(kind).find(|entry| !features::enabled(entry.feature)) {
        return Err(TrackError::ForcedOff { tracker: kind.name(), feature: entry.name() });
    }
    for entry in entries(kind) {
        // The probes of these features ignore the directory.
        (entry.probe)(Path::new("/")).map_err(|cause| TrackError::Missing {
            tracker: kind.name(),
            cause,
            fix: entry.fix,
        })?;
    }
    kind.self_test()
}

fn entries(kind: &'static dyn TrackerKind) -> impl Iterator<Item = &'static FeatureEntry> {
    features::REGISTRY.iter().filter(|entry| kind.features().contains(&entry.feature))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_full_always_works() {
        for (index, kind) in REGISTRY.iter().enumerate() {
            assert!(REGISTRY[..index].iter().all(|other| other.name() != kind.name()), "{}", kind.name());
            assert!(kind.name() != AUTO && !kind.purpose().is_empty());
        }
        assert_eq!(choose("full").unwrap().kind.name(), "full");
        assert!(choose(AUTO).unwrap().kind.properties().automatic);
        let unknown = choose("guess").unwrap_err();
        assert!(unknown.to_string().contains("auto, pagemap-scan, soft-dirty, full"), "{unknown}");
    }

    #[test]
    fn every_tracker_is_here_or_says_what_it_lacks() {
        for kind in REGISTRY {
            match choose(kind.name()) {
                Ok(choice) => assert_eq!(choice.kind.name(), kind.name()),
                Err(error @ (TrackError::Missing { .. } | TrackError::ForcedOff { .. })) => {
                    println!("unsupported: tracker {}: {error}", kind.name());
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}
