//! The kinds of probes, and their text form.
//!
//! Owns: the text forms of the addresses and URLs of probes.
//! Invariants: parsing resolves no host name and opens nothing, so parsing never blocks.
//! Does not: send a request; an attempt does.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use rustix::net::SocketAddrUnix;

const HTTP_PORT: u16 = 80;
/// The address of `localhost`, because names are not resolved.
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A health check of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Probe {
    /// Succeeds if a TCP connection to this address is accepted. The kernel may accept on behalf of the program.
    Tcp(SocketAddr),
    /// Succeeds if a connection to the Unix stream socket at this path is accepted. The kernel may accept on behalf of
    /// the program.
    Unix(PathBuf),
    /// Succeeds if a GET request receives a response with a status from 200 to 399.
    Http(HttpTarget),
    /// Succeeds if this program exits with status 0. No shell interprets the words.
    Exec(Vec<String>),
}

/// The target of a GET request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpTarget {
    pub(super) address: SocketAddr,
    /// The value of the header `Host`: host and port as written by the user.
    pub(super) host: String,
    /// Path and query; the text begins with `/`.
    pub(super) path: String,
}

/// The reason why a text is not a valid probe.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProbeError {
    /// The text is not an address.
    #[error(
        "{0:?} is no address; write it like 127.0.0.1:7801, [::1]:7801, localhost:7801 or unix:/run/a.sock"
    )]
    Address(String),
    /// The text contains a host name, and a name lookup would block.
    #[error("{0:?} contains a host name, which undying does not resolve; write an IP address, or localhost")]
    HostName(String),
    /// The text is the URL of an encrypted connection.
    #[error(
        "{0:?} needs TLS, which undying does not support; write an http:// URL, or use a command as the probe (exec)"
    )]
    Encrypted(String),
    /// The text is not an HTTP URL.
    #[error("{0:?} is not a valid URL of a probe; write a URL like http://127.0.0.1:8000/health")]
    Url(String),
    /// The URL contains a character that is not valid in a request line.
    #[error("the path of {0:?} has a space, a control or a non-ASCII character; write it as %XX")]
    UrlPath(String),
    /// The text is not an absolute path, or the path is too long for a socket address.
    #[error("{0:?} is not a valid path of a socket; write unix: and an absolute path of at most 107 bytes")]
    SocketPath(String),
    /// The command contains no program.
    #[error("the command is empty; write at least the name of a program")]
    NoProgram,
}

impl Probe {
    /// Returns the address to which the probe connects, in the form that [`Probe::tcp`] parses.
    #[must_use]
    pub fn address(&self) -> Option<String> {
        match self {
            Self::Tcp(address) => Some(address.to_string()),
            Self::Unix(path) => Some(format!("unix:{}", path.display())),
            Self::Http(target) => Some(target.address.to_string()),
            Self::Exec(_) => None,
        }
    }

    /// Creates a probe that connects: `127.0.0.1:7801`, `[::1]:80`, `localhost:80` (127.0.0.1 port 80) or `unix:/path`.
    ///
    /// # Errors
    ///
    /// The defect of the text; the message shows a valid form.
    pub fn tcp(text: &str) -> Result<Self, ProbeError> {
        match text.strip_prefix("unix:") {
            Some(path) => unix(path).map(Self::Unix).ok_or_else(|| ProbeError::SocketPath(text.to_owned())),
            None => host_and_port(text, text, None, ProbeError::Address).map(Self::Tcp),
        }
    }

    /// Creates a probe that sends a GET request: `http://127.0.0.1:8000/path?query`. A fragment (`#…`) is removed.
    ///
    /// # Errors
    ///
    /// The defect of the text; the message shows a valid form.
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

    /// Creates a probe that runs a program.
    ///
    /// # Errors
    ///
    /// [`ProbeError::NoProgram`] if the command contains no program.
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

/// Parses a host with a port. If the text contains no port, uses `default`.
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
