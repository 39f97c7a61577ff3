//! What this kernel and this user offer beyond the minimum.
//!
//! Owns: the registry of optional kernel features, their probes, and the switch that forces one off.
//! Invariants: a feature that is forced off is never used; `UNDYING_FEATURES_OFF` names them, comma-separated.
//! Does not: decide what to do without a feature; the code that uses it falls back.

use std::sync::OnceLock;

use crate::error::Result;

/// A kernel feature that has a fallback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Feature {
    /// The PAGEMAP_SCAN request.
    PagemapScan,
    /// io_uring for writing images.
    IoUring,
    /// O_DIRECT on the store's file system.
    DirectIo,
}

/// One row of the registry.
#[derive(Clone, Copy, Debug)]
pub struct FeatureEntry {
    /// The feature.
    pub feature: Feature,
    /// Its name in `doctor` and in `UNDYING_FEATURES_OFF`.
    pub name: &'static str,
    /// What it is for, and what happens without it.
    pub purpose: &'static str,
}

/// Every optional feature.
pub const REGISTRY: &[FeatureEntry] = &[
    FeatureEntry {
        feature: Feature::PagemapScan,
        name: "pagemap-scan",
        purpose: "finds pages by ranges; without it every page entry is read (slower)",
    },
    FeatureEntry {
        feature: Feature::IoUring,
        name: "io-uring",
        purpose: "keeps several writes of an image in flight; without it they go one by one",
    },
    FeatureEntry {
        feature: Feature::DirectIo,
        name: "direct-io",
        purpose: "writes images past the page cache; without it through the cache with fdatasync",
    },
];

/// Whether a feature may be used: it is not forced off.
#[must_use]
pub fn enabled(feature: Feature) -> bool {
    !forced_off().contains(&feature)
}

fn forced_off() -> &'static [Feature] {
    static OFF: OnceLock<Vec<Feature>> = OnceLock::new();
    OFF.get_or_init(|| {
        let names = std::env::var("UNDYING_FEATURES_OFF").unwrap_or_default();
        REGISTRY
            .iter()
            .filter(|entry| names.split(',').any(|name| name.trim() == entry.name))
            .map(|entry| entry.feature)
            .collect()
    })
}

/// Whether the kernel has PAGEMAP_SCAN, tried on ourselves.
pub fn probe_pagemap_scan() -> Result<bool> {
    let pid = model::Pid(std::process::id() as i32);
    let map = crate::pagemap::Pagemap::open(pid)?;
    Ok(map.supports_scan())
}
