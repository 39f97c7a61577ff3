//! Tests of the reports of a guardian (the supervising process) in the journal of systemd.
//!
//! The journal is a socket below `/run`. Each test has its own `/run` in a mount namespace.

use serde_json::Value;

use crate::common::{Lab, supported};

/// A replacement of the journal. It receives entries while a command runs. Then it prints the entries and the standard
/// error of the command as JSON. The first argument chooses whether the journal is closed when the command starts.
const JOURNAL: &str = r#"
import json, os, socket, struct, subprocess, sys
os.makedirs("/run/systemd/journal")
journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
journal.bind("/run/systemd/journal/socket")
journal.settimeout(0.2)
how, errors, *command = sys.argv[1:]
stderr = open(errors, "w")
stat = os.fstat(stderr.fileno())
inode = stat.st_ino + (how == "other")
environment = {**os.environ, "JOURNAL_STREAM": f"{stat.st_dev}:{inode}"}
if how == "closed":
    journal.shutdown(socket.SHUT_RD)
process = subprocess.Popen(command, stderr=stderr, env=environment, stdin=subprocess.DEVNULL)
entries = []
while True:
    try:
        data = journal.recv(65536) if how != "closed" else process.wait() and b"" or b""
    except TimeoutError:
        if process.poll() is None:
            continue
        break
    if not data:
        break
    entry = {}
    while data:
        line, data = data.split(b"\n", 1)
        name, has_value, value = line.partition(b"=")
        if not has_value:
            length, = struct.unpack("<Q", data[:8])
            value, data = data[8:8 + length], data[9 + length:]
        entry[name.decode()] = value.decode()
    entries.append(entry)
print(json.dumps({"entries": entries, "stderr": open(errors).read(), "status": process.wait()}))
"#;

/// Returns the reports of a run with a journal in the mode `how`. Returns `None` if no mount namespace can be created.
fn reported(lab: &Lab, how: &str) -> Option<Value> {
    let errors = lab.path("errors");
    let undying = lab.undying([
        "run",
        "--name",
        "job",
        "--restart",
        "always",
        "--max-restarts",
        "1/1m",
        "--",
        "sh",
        "-c",
        "exit 3",
    ]);
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c"]);
    command.args(["mount -t tmpfs none /run && exec python3 -c \"$0\" \"$@\"", JOURNAL, how]);
    command.arg(&errors).arg(undying.get_program()).args(undying.get_args());
    for (name, value) in undying.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command.output().unwrap();
    if output.stdout.is_empty() {
        let reason = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(reason.contains("unshare") || reason.contains("mount"), "{reason}");
        println!("unsupported: mount namespace: {}", reason.trim());
        return None;
    }
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn reports_have_fields_in_the_journal() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let Some(found) = reported(&lab, "open") else { return };
    assert_eq!(found["status"], 3, "{found:#}");
    let entries = found["entries"].as_array().unwrap();
    let of = |event: &str| entries.iter().find(|entry| entry["UNDYING_EVENT"] == event);
    let died = of("died").unwrap_or_else(|| panic!("{found:#}"));
    assert_eq!([&died["UNDYING_EXIT"], &died["PRIORITY"], &died["SYSLOG_IDENTIFIER"]], ["3", "4", "undying"]);
    assert!(died["MESSAGE"].as_str().unwrap().ends_with("exited with 3"), "{died}");
    assert_eq!(of("gave-up").unwrap()["PRIORITY"], "3", "{found:#}");
    assert_eq!(found["stderr"], "");
}

#[test]
fn reports_are_text_where_stderr_is_not_the_journal_or_the_journal_is_gone() {
    if !supported() {
        return;
    }
    for how in ["other", "closed"] {
        let lab = Lab::new();
        let Some(found) = reported(&lab, how) else { return };
        assert_eq!(found["entries"].as_array().map(Vec::len), Some(0), "{how}: {found:#}");
        assert!(found["stderr"].as_str().unwrap().contains("exited with 3"), "{how}: {found:#}");
    }
}
