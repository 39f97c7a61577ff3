//! Whether the kernel gives programs huge pages that did not ask for them.
//!
//! Owns: the system's setting.
//! Invariants: none.
//! Does not: know what a program has asked for.
//!
//! Man page: madvise(2)
//! Since: Linux 2.6.38
//! Probe: none needed; a kernel without the file has no such pages
//! Fallback: none needed

const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Whether the first write to a place in a large area of memory makes a huge page.
#[must_use]
pub fn are_the_rule() -> bool {
    std::fs::read_to_string(ENABLED).is_ok_and(|choices| choices.contains("[always]"))
}
