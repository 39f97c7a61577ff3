//! The journal of systemd, if standard error is connected to it.
//!
//! Owns: the detection of the journal, and its native protocol (fields in addition to the message).
//! Invariants: if the journal does not accept a message, the caller writes the message to standard error.
//! Does not: choose the text of a message.
//!
//! Protocol: <https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use guardian::{RunEvent, Severity};
use serde_json::Value;

const SOCKET: &str = "/run/systemd/journal/socket";
/// The variable that contains the device and inode of the stream to the journal: systemd.exec(5).
const STREAM: &str = "JOURNAL_STREAM";

#[derive(Debug)]
pub(crate) struct Journal(UnixDatagram);

impl Journal {
    /// Returns the journal if standard error is connected to it and the journal is reachable.
    pub(crate) fn of_stderr() -> Option<Self> {
        let named = std::env::var_os(STREAM)?;
        let stderr = std::fs::metadata("/proc/self/fd/2").ok()?;
        is_stream(&named, stderr.dev(), stderr.ino()).then(|| Self::at(Path::new(SOCKET)).ok()).flatten()
    }

    fn at(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        Ok(Self(socket))
    }

    /// Sends one entry.
    ///
    /// # Errors
    ///
    /// The errno of send(2), for example EMSGSIZE for a long message, or ECONNREFUSED after a restart of the journal.
    pub(crate) fn send(&self, message: &str, fields: &[(String, String)]) -> io::Result<()> {
        let mut entry = Vec::new();
        append(&mut entry, "MESSAGE", message);
        append(&mut entry, "SYSLOG_IDENTIFIER", "undying");
        for (name, value) in fields {
            append(&mut entry, name, value);
        }
        self.0.send(&entry).map(drop)
    }
}

/// Returns the fields of an event: its priority, the name of the system, the name of the subject, and each key of its
/// JSON form as `UNDYING_KEY`.
pub(crate) fn fields(
    (system, subject): (Option<&str>, Option<&str>),
    event: &RunEvent,
) -> Vec<(String, String)> {
    let priority = match event.severity() {
        Severity::Information => "6",
        Severity::Warning => "4",
        Severity::Error => "3",
    };
    let mut fields = vec![("PRIORITY".to_owned(), priority.to_owned())];
    fields.extend(system.map(|name| ("UNDYING_SYSTEM".to_owned(), name.to_owned())));
    fields.extend(subject.map(|name| ("UNDYING_SUBJECT".to_owned(), name.to_owned())));
    let Ok(Value::Object(keys)) = serde_json::to_value(event) else { return fields };
    for (key, value) in keys {
        let text = match value {
            Value::Null => continue,
            Value::String(text) => text,
            other => other.to_string(),
        };
        fields.push((format!("UNDYING_{}", key.to_ascii_uppercase()), text));
    }
    fields
}

fn is_stream(named: &OsStr, device: u64, inode: u64) -> bool {
    named.as_bytes() == format!("{device}:{inode}").as_bytes()
}

/// Appends a field. If the value contains line breaks, its length precedes the value.
fn append(entry: &mut Vec<u8>, name: &str, value: &str) {
    entry.extend(name.as_bytes());
    if value.contains('\n') {
        entry.push(b'\n');
        entry.extend((value.len() as u64).to_le_bytes());
    } else {
        entry.push(b'=');
    }
    entry.extend(value.as_bytes());
    entry.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_the_message_and_the_keys_of_the_event() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let receiver = UnixDatagram::bind(&path).unwrap();
        let event = RunEvent::Died { pid: 7, signal: Some(9), exit: None };
        let journal = Journal::at(&path).unwrap();
        journal.send("first\nsecond", &fields((Some("shop"), Some("db")), &event)).unwrap();
        let mut received = [0; 1024];
        let length = receiver.recv(&mut received).unwrap();
        let expected = b"MESSAGE\n\x0c\0\0\0\0\0\0\0first\nsecond\nSYSLOG_IDENTIFIER=undying\nPRIORITY=4\n\
                         UNDYING_SYSTEM=shop\nUNDYING_SUBJECT=db\nUNDYING_EVENT=died\nUNDYING_PID=7\nUNDYING_SIGNAL=9\n";
        assert_eq!(String::from_utf8_lossy(&received[..length]), String::from_utf8_lossy(expected));
    }

    #[test]
    fn the_stream_is_named_by_device_and_inode() {
        assert!(is_stream(OsStr::new("8:1234"), 8, 1234));
        for other in ["8:123", "", "8", "8:1234 ", "1234:8"] {
            assert!(!is_stream(OsStr::new(other), 8, 1234), "{other}");
        }
    }
}
