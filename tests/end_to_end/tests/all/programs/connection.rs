//! A TCP connection to a program, line by line, from outside its tree.
//!
//! Owns: `Connection`.
//! Invariants: nothing blocks for longer than the limit; a connection that breaks is an error, never made again
//! in silence.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::Instant;

use super::problem::{Context, Outcome, Problem, check};
use super::{LIMIT, POLL};

/// One connection.
pub(crate) struct Connection {
    reader: BufReader<TcpStream>,
}

impl Connection {
    /// Connects once.
    pub(crate) fn once(port: u16) -> std::io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        Ok(Self { reader: BufReader::new(stream) })
    }

    /// Connects, and retries while no program listens: it may be starting or dead.
    pub(crate) fn open(port: u16) -> Outcome<Self> {
        let deadline = Instant::now() + LIMIT;
        loop {
            match Self::once(port) {
                Ok(connection) => return Ok(connection),
                Err(error) if Instant::now() >= deadline => {
                    return Err(error).context(format!("connect to port {port}"));
                }
                Err(_) => thread::sleep(POLL),
            }
        }
    }

    /// Sends bytes.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> Outcome {
        self.reader.get_mut().write_all(bytes.as_ref()).context("send")
    }

    /// One line without its end.
    pub(crate) fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        let length = self.reader.read_line(&mut line).context("read a line")?;
        check(length > 0, || "the program closed the connection".to_owned())?;
        line.truncate(line.trim_end().len());
        Ok(line)
    }

    /// So many bytes.
    pub(crate) fn bytes(&mut self, length: usize) -> Outcome<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.reader.read_exact(&mut bytes).context("read")?;
        Ok(bytes)
    }

    /// Sends a line, and gives the line that answers.
    pub(crate) fn ask(&mut self, line: &str) -> Outcome<String> {
        self.send(format!("{line}\r\n"))?;
        self.line().context(line)
    }

    /// Asks, and fails unless the answer is this one.
    pub(crate) fn expect(&mut self, line: &str, answer: &str) -> Outcome {
        let got = self.ask(line)?;
        check(got == answer, || format!("`{line}` was answered with `{got}`, not with `{answer}`"))
    }

    /// Asks for a number behind a prefix, such as redis's `:7`.
    pub(crate) fn number(&mut self, line: &str, prefix: &str) -> Outcome<u64> {
        let answer = self.ask(line)?;
        let number = answer.strip_prefix(prefix).and_then(|rest| rest.parse().ok());
        number.ok_or_else(|| Problem::new(format!("`{line}` was answered with `{answer}`")))
    }
}
