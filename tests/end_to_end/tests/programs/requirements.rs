//! What a test needs from the machine.
//!
//! Owns: looking for programs and rights, saying `unsupported: X`, finding free ports.
//! Invariants: a port is below the range from which the kernel picks, so that no other program gets it while its owner is dead.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};

use crate::problem::{Outcome, Problem};

/// Holds back the packets of connections whose program is dead for a moment.
pub(crate) const PACKET_FILTER: &str = "nft";

/// Folders with servers that are not in every PATH.
const MORE_FOLDERS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/go/bin"];
/// Ports to try; below the kernel's own range, which starts at 32768.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// Whether everything is here; else says what is not.
pub(crate) fn are_met(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| find(program).is_none());
    let lacks = match missing {
        Some(program) => Some((*program).to_owned()),
        None if !rustix::process::geteuid().is_root() => Some("root".to_owned()),
        None => None,
    };
    if let Some(lacks) = &lacks {
        testkit::unsupported(lacks);
    }
    lacks.is_none()
}

/// The path of an installed program.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(MORE_FOLDERS.iter().map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|candidate| is_program(candidate))
}

/// An unused TCP port of 127.0.0.1.
pub(crate) fn free_port() -> Outcome<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let count = PORTS.end - PORTS.start;
    // Runs side by side begin at different places.
    let start = u16::try_from(std::process::id() % u32::from(count))?.wrapping_mul(7) % count;
    for _ in 0..count {
        let port = PORTS.start + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % count;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    Err(Problem::new("no TCP port is free"))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
