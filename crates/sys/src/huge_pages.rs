//! Reads whether the kernel uses transparent huge pages for programs that did not ask for them with
//! madvise(2).
//!
//! Owns: the system-wide setting.
//! Invariants: none.
//! Does not: know whether a program has asked for huge pages.
//!
//! Man page: madvise(2)
//! Since: Linux 2.6.38
//! Probe: none needed; a kernel without the file has no transparent huge pages
//! Fallback: none needed

const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Reports whether the system-wide setting is `always`. With this setting, the first write to an address in a
/// large mapping can allocate a huge page. The program does not have to ask for huge pages.
#[must_use]
pub fn are_always_enabled() -> bool {
    std::fs::read_to_string(ENABLED).is_ok_and(|choices| choices.contains("[always]"))
}
