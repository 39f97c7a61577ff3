//! Routes: the assignment of addresses to components.
//!
//! Owns: the addresses at which a component has listened or is declared to listen, and the target addresses of callers.
//! Invariants: two paths are the same address if they lead to the same name in the same directory.
//! Does not: check whether the component currently serves an address.

use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use model::{Escaped, Tid};

use crate::address::{Address, Reach, reach};
use crate::held::Held;
use crate::place::{Identity, Place};

/// An address of a component.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// A TCP address; the second value is IPV6_V6ONLY.
    Inet(SocketAddr, bool),
    /// A name in the abstract namespace.
    Abstract(Vec<u8>),
    /// A name in the directory with this device and inode.
    Bound(Identity, OsString),
    /// An absolute path. Its directory may be created later.
    Declared(PathBuf),
}

/// The target address of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Target {
    pub(crate) address: Address,
    /// The directory and the name, if the address is a path.
    place: Option<(Identity, OsString)>,
}

impl Route {
    pub(crate) fn declared(address: Address) -> Self {
        match address {
            Address::Inet(address) => Self::Inet(address, false),
            Address::Abstract(name) => Self::Abstract(name),
            Address::Path(path) => Self::Declared(PathBuf::from(OsString::from_vec(path))),
        }
    }

    /// Returns the route of a held socket. Returns `None` for a path whose directory is not known.
    pub(crate) fn of(held: &Held) -> Option<Self> {
        Some(match &held.address {
            Address::Inet(address) => Self::Inet(*address, held.kind.is_v6_only),
            Address::Abstract(name) => Self::Abstract(name.clone()),
            Address::Path(_) => {
                let place = &held.path.as_ref()?.place;
                Self::Bound(place.identity, place.name.to_owned())
            }
        })
    }

    /// Reports whether a caller of the target reaches a socket that listens at this route.
    pub(crate) fn reach(&self, target: &Target) -> Reach {
        let serves = |serves| if serves { Reach::Yes } else { Reach::No };
        match (self, &target.address) {
            (Self::Inet(own, is_v6_only), Address::Inet(wanted)) => reach(*own, *is_v6_only, *wanted),
            (Self::Abstract(own), Address::Abstract(wanted)) => serves(own == wanted),
            (Self::Bound(directory, name), Address::Path(_)) => serves(
                target.place.as_ref().is_some_and(|wanted| (&wanted.0, &wanted.1) == (directory, name)),
            ),
            (Self::Declared(path), Address::Path(_)) => {
                let place = Place::of_path(path);
                let own = place.as_ref().map(|place| (place.identity, place.name.as_os_str()));
                let wanted = target.place.as_ref().map(|(directory, name)| (*directory, name.as_os_str()));
                serves(own.is_some() && own == wanted)
            }
            _ => Reach::No,
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet(address, _) => write!(formatter, "{address}"),
            Self::Abstract(name) => write!(formatter, "{}", Address::Abstract(name.clone())),
            Self::Bound(_, name) => write!(formatter, "{}", Escaped(&name.to_string_lossy())),
            Self::Declared(path) => write!(formatter, "{}", Escaped(&path.to_string_lossy())),
        }
    }
}

impl Target {
    /// Creates the target of a call. If the directory of a path cannot be opened, no component serves the target.
    pub(crate) fn of_thread(thread: Tid, address: Address) -> Self {
        let place = address.path().and_then(|path| Place::of_thread(thread, path));
        let place = place.map(|place| (place.identity, place.name.to_owned()));
        Self { address, place }
    }

    /// Reports whether the host is an address of this machine. The check binds a UDP socket to the host.
    pub(crate) fn is_local(&self) -> bool {
        match &self.address {
            Address::Inet(address) => {
                let host = address.ip();
                std::net::UdpSocket::bind((host, 0)).is_ok() && host != IpAddr::from([255, 255, 255, 255])
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_declared_path_is_the_name_it_leads_to() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("below/../socket");
        let thread = Tid(std::process::id() as i32);
        let wanted = Address::Path(directory.path().join("socket").into_os_string().into_vec());
        let target = Target::of_thread(thread, wanted);
        let route = Route::Declared(path);
        assert_eq!(route.reach(&target), Reach::No);
        std::fs::create_dir(directory.path().join("below")).unwrap();
        assert_eq!(route.reach(&target), Reach::Yes);
        assert_eq!(Route::Abstract(b"socket".to_vec()).reach(&target), Reach::No);
    }

    #[test]
    fn hosts_of_other_machines_are_not_local() {
        let thread = Tid(std::process::id() as i32);
        let target = |text: &str| Target::of_thread(thread, Address::parse(text).unwrap().remove(0));
        assert!(target("127.0.0.1:80").is_local());
        assert!(!target("192.0.2.1:80").is_local());
    }
}
