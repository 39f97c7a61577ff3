//! Network interfaces in records.
//!
//! Owns: the conversion between the name and the index of an interface. A record contains the name, because the index
//! can change at a boot.
//! Does not: create interfaces.

use std::os::fd::AsFd;

use rustix::net::netdevice::{index_to_name, name_to_index};

use crate::error::{ResourceError, Result};

/// Returns the name of the interface with an index, in the network namespace of `socket`. Returns `None` if the
/// interface was removed.
pub(crate) fn name_of(socket: impl AsFd, index: u32) -> Option<String> {
    index_to_name(socket, index).ok()
}

/// Returns the index of the interface with a name, in the network namespace of `socket`. `use_of_it` says how the program
/// uses the interface.
pub(crate) fn index_of(socket: impl AsFd, name: &str, use_of_it: &str) -> Result<u32> {
    name_to_index(socket, name).map_err(|_| ResourceError::File {
        path: format!("network interface {name}"),
        why: format!("{use_of_it}, and the interface does not exist"),
        fix: "create the interface (`ip link add`), then restore again".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found_by_name_and_by_index() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let index = index_of(&socket, "lo", "").unwrap();
        assert_eq!(name_of(&socket, index).as_deref(), Some("lo"));
        let refused = index_of(&socket, "missing0", "it uses it").unwrap_err().to_string();
        assert!(refused.contains("missing0"), "{refused}");
    }
}
