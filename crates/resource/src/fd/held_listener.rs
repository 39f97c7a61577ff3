//! Listening sockets that were held open, with their pending connections, while the subject was dead.
//!
//! Owns: finding the held socket that matches a saved listening socket.
//! Invariants: a held socket is used once, and only if its address, its type and the file of its path match.
//! Does not: hold sockets open; the caller of the restore does.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::net::sockopt;
use sys::socket::{self, SocketAddress};

use super::socket_family::Family;

/// Removes a listening socket with this family and local address that `suits` from `held`, and returns the socket.
/// Returns `None` if there is no such socket.
pub(crate) fn take(
    held: &mut Vec<OwnedFd>,
    family: Family,
    local: &SocketAddress,
    suits: impl Fn(&OwnedFd) -> bool,
) -> Option<OwnedFd> {
    let is_it = |socket: &OwnedFd| {
        sockopt::socket_acceptconn(socket) == Ok(true)
            && Family::of(socket).is_ok_and(|own| own == family)
            && socket::local(socket.as_fd()).is_ok_and(|own| own == *local)
            && suits(socket)
    };
    let place = held.iter().position(is_it)?;
    Some(held.remove(place))
}

/// Reports whether one of `paths` leads to the file of a bound Unix socket. A relative path leads to no file, because
/// the working directory of the program is unknown.
pub(crate) fn has_its_file(socket: &OwnedFd, paths: &[PathBuf]) -> bool {
    let Ok(Some(file)) = socket::bound_file(socket.as_fd()) else { return false };
    let Ok(own) = rustix::fs::fstat(&file) else { return false };
    let leads = |path: &PathBuf| {
        let there = rustix::fs::lstat(path.as_path());
        there.is_ok_and(|there| (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino))
    };
    paths.iter().filter(|path| path.is_absolute()).any(leads)
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
        assert!(take(&mut held, datagram, &address, |_| true).is_none(), "of another type");
        let found = take(&mut held, stream, &address, |_| true).unwrap();
        assert_eq!(socket::local(found.as_fd()).unwrap(), address);
        assert!(take(&mut held, stream, &address, |_| true).is_none() && held.len() == 1);
    }

    #[test]
    fn a_path_to_another_socket_is_not_the_sockets_own() {
        let folder = tempfile::tempdir().unwrap();
        let paths = [folder.path().join("gone"), folder.path().join("socket")];
        let socket: OwnedFd = std::os::unix::net::UnixListener::bind(&paths[1]).unwrap().into();
        assert!(has_its_file(&socket, &paths));
        std::fs::remove_file(&paths[1]).unwrap();
        assert!(!has_its_file(&socket, &paths));
        let _other = std::os::unix::net::UnixListener::bind(&paths[1]).unwrap();
        assert!(!has_its_file(&socket, &paths));
    }
}
