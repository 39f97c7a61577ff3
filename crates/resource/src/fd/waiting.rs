//! The accept queue in the record of a listening socket: connections that wait to be accepted.
//!
//! Owns: the check of the list of connections.
//! Does not: connect sockets; the descriptor kinds `tcp` and `unix` do.

use std::collections::HashSet;

use crate::error::{ResourceError, Result};

/// Refuses a list that contains a socket twice. Each connection is created once, and the accept queue has room only
/// for the listed connections.
pub(super) fn check(kind: &'static str, waiting: &[u32]) -> Result<()> {
    let mut known = HashSet::new();
    match waiting.iter().find(|id| !known.insert(**id)) {
        Some(id) => Err(ResourceError::malformed(kind, format!("socket {id} is in the accept queue twice"))),
        None => Ok(()),
    }
}
