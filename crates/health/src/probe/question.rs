//! Requests of probes, and their text form.
//!
//! Owns: the forms in which an address or a URL of a probe is written.
//! Invariants: parsing resolves no name and opens nothing, so that it never blocks.
//! Does not: send a request; an attempt does.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use rustix::net::SocketAddrUnix;

/// The port of a URL without one.
const HTTP_PORT: u16 = 80;
/// The address of `localhost`: names are not resolved.
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A question to a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Probe {
    /// A TCP connection to this address is accepted, by the kernel at least.
    Tcp(SocketAddr),
    /// A connection to the Unix stream socket at this path is accepted, by the kernel at least.
    Unix(PathBuf),
    /// A GET is answered with a status of 200 to 399.
    Http(HttpTarget),
    /// This program ends with status 0. No shell reads the words.
    Exec(Vec<String>),
}

/// Where a GET goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpTarget {
    /// The server.
    pub(super) address: SocketAddr,
    /// The value of the header `Host`: host and port as written.
    pub(super) host: String,
    /// Path and query, which begin with `/`.
    pub(super) path: String,
}

/// Why a text is no probe.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProbeError {
    /// It is no address.
    #[error(
        "{0:?} is no address; write it like 127.0.0.1:7801, [::1]:7801, localhost:7801 or unix:/run/a.sock"
    )]
    Address(String),
    /// It has a name, whose lookup would wait.
    #[error("{0:?} names a host by a name, which is not looked up; write its IP address, or localhost")]
    HostName(String),
    /// It is a URL of an encrypted connection.
    #[error("{0:?} asks for an encrypted connection; write an http:// URL, or a program of your own as exec")]
    Encrypted(String),
    /// It is no URL of HTTP.
    #[error("{0:?} is no URL of a probe; write it like http://127.0.0.1:8000/health")]
    Url(String),
    /// It has a character that a request line cannot have.
    #[error("the path of {0:?} has a space, a control or a non-ASCII character; write it as %XX")]
    UrlPath(String),
    /// It is no absolute path that fits into the address of a socket.
    #[error("{0:?} is no path of a socket; write unix: and an absolute path of at most 107 bytes")]
    SocketPath(String),
    /// It names no program.
    #[error("no program is named; write at least one word")]
    NoProgram,
}

impl Probe {
    /// The address that it connects to, as [`Probe::tcp`] reads it.
    #[must_use]
    pub fn address(&self) -> Option<String> {
        match self {
            Self::Tcp(address) => Some(address.to_string()),
            Self::Unix(path) => Some(format!("unix:{}", path.display())),
            Self::Http(target) => Some(target.address.to_string()),
            Self::Exec(_) => None,
        }
    }

    /// A probe for connections: `127.0.0.1:7801`, `[::1]:80`, `localhost:80` (which is 127.0.0.1) or `unix:/path`.
    ///
    /// # Errors
    ///
    /// What is wrong with the text, and what to write instead.
    pub fn tcp(text: &str) -> Result<Self, ProbeError> {
        match text.strip_prefix("unix:") {
            Some(path) => unix(path).map(Self::Unix).ok_or_else(|| ProbeError::SocketPath(text.to_owned())),
            None => host_and_port(text, text, None, ProbeError::Address).map(Self::Tcp),
        }
    }

    /// A probe for an answer: `http://127.0.0.1:8000/path?query`. A fragment (`#…`) is left out.
    ///
    /// # Errors
    ///
    /// What is wrong with the text, and what to write instead.
    pub fn http(text: &str) -> Result<Self, ProbeError> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| ProbeError::Url(text.to_owned()))?;
        if scheme.eq_ignore_ascii_case("https") {
            return Err(ProbeError::Encrypted(text.to_owned()));
        }
        if !scheme.eq_ignore_ascii_case("http") {
            return Err(ProbeError::Url(text.to_owned()));
        }
        let rest = rest.split_once('#').map_or(rest, |(before, _)| before);
        let host_ends = rest.find(['/', '?']).unwrap_or(rest.len());
        let (host, path) = rest.split_at(host_ends);
        let address = host_and_port(text, host, Some(HTTP_PORT), ProbeError::Url)?;
        if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ProbeError::UrlPath(text.to_owned()));
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self::Http(HttpTarget { address, host: host.to_owned(), path }))
    }

    /// A probe that runs a program.
    ///
    /// # Errors
    ///
    /// That there is no program.
    pub fn exec(command: &[String]) -> Result<Self, ProbeError> {
        match command.first() {
            Some(program) if !program.is_empty() => Ok(Self::Exec(command.to_vec())),
            _ => Err(ProbeError::NoProgram),
        }
    }
}

fn unix(path: &str) -> Option<PathBuf> {
    (path.starts_with('/') && SocketAddrUnix::new(path).is_ok()).then(|| PathBuf::from(path))
}

/// The address that a host with a port means; without a port the default one, if there is one.
fn host_and_port(
    text: &str,
    written: &str,
    default: Option<u16>,
    malformed: fn(String) -> ProbeError,
) -> Result<SocketAddr, ProbeError> {
    if let Ok(address) = written.parse::<SocketAddr>() {
        return Ok(address);
    }
    let bare = written.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(written);
    if let (Some(port), Ok(ip)) = (default, bare.parse::<IpAddr>())
        && ip.is_ipv6() == written.starts_with('[')
    {
        return Ok(SocketAddr::new(ip, port));
    }
    let (host, port) = match written.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok()),
        None => (written, default),
    };
    let port = port.ok_or_else(|| malformed(text.to_owned()))?;
    if host.eq_ignore_ascii_case("localhost") {
        return Ok(SocketAddr::new(LOCALHOST, port));
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let has_letter = host.bytes().any(|byte| byte.is_ascii_alphabetic());
    match has_letter && host.bytes().all(is_name) {
        true => Err(ProbeError::HostName(text.to_owned())),
        false => Err(malformed(text.to_owned())),
    }
}
