//! Ports for programs under test.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Mutex;

/// The names that reserve the returned ports. A name is free again when its process ends.
static RESERVED: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());

/// Returns a free TCP port that no other test gets, and that the kernel gives to no client and no other server.
///
/// A port that the kernel has chosen (`bind` to port 0) is not reserved after its socket is closed: the kernel can give
/// it to any connection before the program under test binds it. The returned port is therefore below the range from
/// which the kernel chooses (ip_local_port_range). Processes that run tests at the same time share ports by abstract
/// socket names, which belong to the same network namespace.
///
/// # Panics
/// Panics if no port is free.
pub fn free_port() -> u16 {
    const FIRST: u16 = 10_000;
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let chosen_by_kernel = range.split_whitespace().next().and_then(|low| low.parse().ok()).unwrap_or(32_768);
    let end = if chosen_by_kernel > FIRST + 1000 { chosen_by_kernel } else { u16::MAX };
    for _ in 0..1000 {
        let port = fastrand::u16(FIRST..end);
        let name = SocketAddr::from_abstract_name(format!("undying-test-port-{port}"));
        let Ok(reserved) = name.and_then(|name| UnixListener::bind_addr(&name)) else { continue };
        let is_free = ["127.0.0.1", "0.0.0.0"].iter().all(|host| TcpListener::bind((*host, port)).is_ok());
        if is_free {
            RESERVED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(reserved);
            return port;
        }
    }
    panic!("no port from {FIRST} to {end} is free");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_free_and_different() {
        let mut ports = [(); 64].map(|()| free_port());
        assert!(ports.iter().all(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()));
        ports.sort_unstable();
        assert!(ports.windows(2).all(|pair| pair[0] != pair[1]), "{ports:?}");
    }
}
