//! Names of the objects in an image, for display.
//!
//! Owns: reading the name from a payload whose first field is the name.
//! Does not: escape the name; the caller that prints the name does.

use prost::Message;
use sys::socket::SocketAddress;

use crate::fd::inet_address;

/// A payload whose first field is a name, as text or bytes. All other fields are skipped.
#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
}

/// Returns the name in the first field of a payload; `None` if the name is empty.
pub(crate) fn first_field(payload: &[u8]) -> Option<String> {
    let name = Named::decode(payload).ok()?.name;
    (!name.is_empty()).then(|| String::from_utf8_lossy(&name).into_owned())
}

/// Formats the addresses of an internet socket: `127.0.0.1:80`, followed by `->` and the address of the peer, if a
/// peer exists.
pub(crate) fn addresses(local: &[u8], peer: &[u8]) -> String {
    let show = |bytes: &[u8]| inet_address::show(&SocketAddress(bytes.to_vec()));
    if peer.is_empty() { show(local) } else { format!("{}->{}", show(local), show(peer)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_field_is_read_whatever_follows() {
        #[derive(Clone, PartialEq, Message)]
        struct File {
            #[prost(string, tag = "1")]
            path: String,
            #[prost(uint64, tag = "2")]
            size: u64,
        }
        let file = File { path: "/etc/hosts".to_owned(), size: 7 };
        assert_eq!(first_field(&file.encode_to_vec()).as_deref(), Some("/etc/hosts"));
        assert_eq!(first_field(&File { path: String::new(), size: 7 }.encode_to_vec()), None);
        let local = inet_address::encode("127.0.0.1:80".parse().unwrap());
        let peer = inet_address::encode("[::1]:9".parse().unwrap());
        assert_eq!(addresses(&local.0, &[]), "127.0.0.1:80");
        assert_eq!(addresses(&local.0, &peer.0), "127.0.0.1:80->[::1]:9");
    }
}
