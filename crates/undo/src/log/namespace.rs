//! The encoding of a user namespace in the undo log.
//!
//! Owns: the message, and its conversions.
//! Does not: interpret ids.

use prost::Message;

use crate::rights::Namespace;

/// The encoding of [`Namespace`]. Each range is two numbers: the first id and the number of ids.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct NamespaceMessage {
    #[prost(uint32, repeated, tag = "1")]
    users: Vec<u32>,
    #[prost(uint32, repeated, tag = "2")]
    groups: Vec<u32>,
}

impl From<&Namespace> for NamespaceMessage {
    fn from(namespace: &Namespace) -> Self {
        let flat =
            |ranges: &[(u32, u32)]| ranges.iter().flat_map(|(first, count)| [*first, *count]).collect();
        Self { users: flat(&namespace.users), groups: flat(&namespace.groups) }
    }
}

impl From<NamespaceMessage> for Namespace {
    fn from(message: NamespaceMessage) -> Self {
        let pairs = |flat: &[u32]| flat.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        Self { users: pairs(&message.users), groups: pairs(&message.groups) }
    }
}
