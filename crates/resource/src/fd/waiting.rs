//! Connections that wait to be accepted, in the record of a listener.
//!
//! Owns: the check of such a list.
//! Does not: connect; the socket kinds do.

use std::collections::HashSet;

use crate::error::{ResourceError, Result};

/// Refuses a list with a duplicate: each connection is made once, and the queue has no room for more.
pub(super) fn check(kind: &'static str, waiting: &[u32]) -> Result<()> {
    let mut known = HashSet::new();
    match waiting.iter().find(|id| !known.insert(**id)) {
        Some(id) => {
            Err(ResourceError::Malformed { kind, why: format!("socket {id} is in the accept queue twice") })
        }
        None => Ok(()),
    }
}
