//! Builds and sends the FIN of a peer, which the peer itself does not send again.
//!
//! Owns: building the TCP segment.
//! Invariants: the segment carries no data, and acknowledges no further bytes.
//! Does not: build other segments with a peer's address.

use super::super::inet_address::parse_plain;
use super::super::raw_packet::inject;
use super::state::{Connection, NAME, State};
use crate::error::{ResourceError, Result};

const IPPROTO_TCP: u8 = 6;
const HEADER_BYTES: u8 = 20;
const CHECKSUM_AT: usize = 16;
const FIN_ACK: u8 = 0x11;

/// Sends to a started socket the FIN that its peer had sent before the checkpoint.
pub(super) fn inject_fin(state: &State, connection: &Connection) -> Result<()> {
    let (Some(local), Some(peer)) = (parse_plain(&state.local()), parse_plain(&state.peer())) else {
        return Err(ResourceError::malformed(NAME, "its addresses are not IP addresses"));
    };
    let acknowledged = connection.send_end.wrapping_sub(connection.written.len() as u32);
    let window = (connection.window_send >> connection.send_scale).min(u32::from(u16::MAX)) as u16;
    let mut bytes = Vec::with_capacity(usize::from(HEADER_BYTES));
    bytes.extend(peer.port().to_be_bytes());
    bytes.extend(local.port().to_be_bytes());
    bytes.extend(connection.receive_end.to_be_bytes());
    bytes.extend(acknowledged.to_be_bytes());
    bytes.extend([(HEADER_BYTES / 4) << 4, FIN_ACK]);
    bytes.extend(window.to_be_bytes());
    bytes.extend([0; 4]);
    inject(peer, local, IPPROTO_TCP, bytes, CHECKSUM_AT)
}
