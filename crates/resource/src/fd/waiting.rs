//! Connections that wait at a listener, as its record lists them.
//!
//! Owns: the check of such a list.
//! Does not: connect; the kinds of socket do.

use std::collections::HashSet;

use crate::error::{ResourceError, Result};

/// Refuses a list that names a connection twice: each is made once, and a listener has no place for more.
pub(super) fn check(kind: &'static str, waiting: &[u32]) -> Result<()> {
    let mut known = HashSet::new();
    match waiting.iter().find(|id| !known.insert(**id)) {
        Some(id) => Err(ResourceError::Malformed { kind, why: format!("socket {id} waits twice") }),
        None => Ok(()),
    }
}
