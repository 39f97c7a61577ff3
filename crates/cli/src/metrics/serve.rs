//! The HTTP server for metrics.
//!
//! Owns: the socket, and the form of requests and responses.
//! Invariants: only clients on this machine are answered. A slow client delays other clients for a limited time.
//! Does not: encrypt or authenticate. A Unix socket is accessible to users who may open its path. A loopback address is
//! accessible to every user of the machine.

use std::convert::Infallible;
use std::fmt::{self, Write as _};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use guardian::{GuardianError, StoreLocation};

/// Maximum duration of one read from a client or one write to a client.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of reads, of 1 KiB each, for the head of a request.
const READS_MAX: usize = 8;
/// Delay after a failed accept(2), for example if no descriptor is free.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Address {
    /// A Unix socket at this path.
    Path(PathBuf),
    /// A TCP address that only this machine can reach.
    Loopback(SocketAddr),
}

impl std::str::FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.contains('/') {
            return Ok(Self::Path(text.into()));
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(Self::Loopback(address)),
            Ok(_) => Err(AddressError::OfOthers),
            Err(_) => Err(AddressError::Unknown),
        }
    }
}

/// The reason why metrics cannot be served at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AddressError {
    /// Other machines could reach the address.
    OfOthers,
    /// The text is not an address.
    Unknown,
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OfOthers => "metrics are served on this machine alone: give a loopback address or a path",
            Self::Unknown => "neither an address as 127.0.0.1:9185 nor a path with a slash",
        })
    }
}

impl std::error::Error for AddressError {}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Loopback(address) => address.fmt(f),
        }
    }
}

/// Answers requests until this program ends.
///
/// # Errors
///
/// The error of bind(2) or listen(2).
pub(crate) fn serve(address: &Address, store: &StoreLocation) -> io::Result<Infallible> {
    match address {
        Address::Path(path) => {
            let listener = open(path)?;
            let limit = |client: &UnixStream| {
                client.set_read_timeout(Some(TIMEOUT)).and_then(|()| client.set_write_timeout(Some(TIMEOUT)))
            };
            each(|| Ok(listener.accept()?.0), limit, store)
        }
        Address::Loopback(address) => {
            let listener = TcpListener::bind(address)?;
            let limit = |client: &TcpStream| {
                client.set_read_timeout(Some(TIMEOUT)).and_then(|()| client.set_write_timeout(Some(TIMEOUT)))
            };
            each(|| Ok(listener.accept()?.0), limit, store)
        }
    }
}

/// Answers clients one after another. A client that disconnects or sends nothing gets no response.
fn each<C>(
    mut accept: impl FnMut() -> io::Result<C>,
    limit: impl Fn(&C) -> io::Result<()>,
    store: &StoreLocation,
) -> !
where
    for<'client> &'client C: Read + Write,
{
    loop {
        match accept() {
            Ok(client) => {
                let _ = limit(&client).and_then(|()| exchange(&client, &client, || metrics(store)));
            }
            Err(_) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

/// Listens at a path. Replaces the file of a socket that does not listen.
fn open(path: &Path) -> io::Result<UnixListener> {
    let is_stale =
        UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if is_stale {
        std::fs::remove_file(path)?;
    }
    UnixListener::bind(path)
}

fn metrics(store: &StoreLocation) -> Result<String, GuardianError> {
    Ok(super::text(&guardian::status(store, None)?.rows))
}

fn exchange(
    mut from: impl Read,
    mut to: impl Write,
    metrics: impl FnOnce() -> Result<String, GuardianError>,
) -> io::Result<()> {
    let head = head(&mut from)?;
    let mut words = head.split_ascii_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let (status, kind, body) = match (method, path) {
        ("GET" | "HEAD", "/metrics") => match metrics() {
            Ok(text) => ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", text),
            Err(why) => ("500 Internal Server Error", PLAIN, format!("{why}\n")),
        },
        ("GET" | "HEAD", _) => ("404 Not Found", PLAIN, "metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", PLAIN, "only GET is answered\n".to_owned()),
    };
    let mut answer = String::new();
    let length = body.len();
    let _ = write!(answer, "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n");
    answer.push_str("Connection: close\r\n\r\n");
    if method != "HEAD" {
        answer.push_str(&body);
    }
    to.write_all(answer.as_bytes())
}

const PLAIN: &str = "text/plain; charset=utf-8";

/// Reads the head of a request, up to the empty line.
fn head(from: &mut impl Read) -> io::Result<String> {
    let mut bytes = Vec::new();
    for _ in 0..READS_MAX {
        let mut more = [0; 1024];
        let count = from.read(&mut more)?;
        bytes.extend_from_slice(&more[..count]);
        if bytes.windows(4).any(|end| end == b"\r\n\r\n") {
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
        if count == 0 {
            break;
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(request: &str) -> String {
        let mut answer = Vec::new();
        let outcome = exchange(request.as_bytes(), &mut answer, || Ok("undying_x 1\n".to_owned()));
        outcome.map_or_else(|error| error.to_string(), |()| String::from_utf8(answer).unwrap())
    }

    #[test]
    fn only_requests_for_metrics_get_them() {
        let found = asked("GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(
            found.starts_with("HTTP/1.1 200 OK\r\n") && found.ends_with("\r\n\r\nundying_x 1\n"),
            "{found}"
        );
        assert!(found.contains("Content-Length: 12\r\n"));
        assert!(asked("HEAD /metrics HTTP/1.0\r\n\r\n").ends_with("close\r\n\r\n"));
        assert!(asked("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(asked("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        for broken in ["", "GET /metrics HTTP/1.1\r\n", &"x".repeat(1 << 20)] {
            assert!(!asked(broken).starts_with("HTTP"), "{broken:.20}");
        }
    }

    #[test]
    fn addresses_of_this_machine_alone_are_taken() {
        assert_eq!("/run/a.sock".parse(), Ok(Address::Path("/run/a.sock".into())));
        assert_eq!("[::1]:80".parse(), Ok(Address::Loopback("[::1]:80".parse().unwrap())));
        for refused in ["0.0.0.0:9185", "192.0.2.1:80", "9185", "localhost:80", ""] {
            assert!(refused.parse::<Address>().is_err(), "{refused}");
        }
    }
}
