//! Listening sockets that were held open, with their pending connections, while the subject was dead.
//!
//! Owns: finding the held socket that matches a saved listening socket.
//! Invariants: a held socket is used once, and only if its address and its type match.
//! Does not: hold sockets open; the caller of the restore does.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::net::sockopt;
use sys::socket::{self, SocketAddress};

use super::socket_family::Family;

/// Removes the listening socket with this family and local address from `held`, and returns the socket. Returns
/// `None` if there is no such socket.
pub(crate) fn take(held: &mut Vec<OwnedFd>, family: Family, local: &SocketAddress) -> Option<OwnedFd> {
    let is_it = |socket: &OwnedFd| {
        sockopt::socket_acceptconn(socket) == Ok(true)
            && Family::of(socket).is_ok_and(|own| own == family)
            && socket::local(socket.as_fd()).is_ok_and(|own| own == *local)
    };
    let place = held.iter().position(is_it)?;
    Some(held.remove(place))
}

/// Reports whether the path of a bound Unix socket still leads to the socket's own file.
pub(crate) fn has_its_file(socket: &OwnedFd, path: &[u8]) -> bool {
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    let Ok(Some(file)) = socket::bound_file(socket.as_fd()) else { return false };
    let (own, there) = (rustix::fs::fstat(&file), rustix::fs::lstat(path));
    path.is_absolute()
        && own.is_ok_and(|own| {
            there.is_ok_and(|there| (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino))
        })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_held_listener_is_found_by_its_address_and_used_once() {
        let (one, other) =
            (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let address = socket::local(other.as_fd()).unwrap();
        let mut held: Vec<OwnedFd> = vec![one.into(), other.into()];
        let stream = Family::of(&held[0]).unwrap();
        let datagram = Family { kind: 2, ..stream };
        assert!(take(&mut held, datagram, &address).is_none(), "of another type");
        let found = take(&mut held, stream, &address).unwrap();
        assert_eq!(socket::local(found.as_fd()).unwrap(), address);
        assert!(take(&mut held, stream, &address).is_none() && held.len() == 1);
    }

    #[test]
    fn a_path_to_another_socket_is_not_the_sockets_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let socket: OwnedFd = std::os::unix::net::UnixListener::bind(&path).unwrap().into();
        assert!(has_its_file(&socket, path.as_os_str().as_bytes()));
        std::fs::remove_file(&path).unwrap();
        assert!(!has_its_file(&socket, path.as_os_str().as_bytes()));
        let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(!has_its_file(&socket, path.as_os_str().as_bytes()));
    }
}
