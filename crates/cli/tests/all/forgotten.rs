//! Tests of `undying run --output committed`: which restarts could forget output that a peer has received.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::process::Signal;

use crate::common::{Guarded, Lab, until, wait};
use crate::policies::lab;
#[test]
fn output_is_not_held_by_a_policy_that_would_forget_it() {
    let Some(lab) = lab(true) else { return };
    let run = ["run", "--name", "job", "--output", "committed", "--every", "50ms"];
    for option in [["--files", "fresh"], ["--files", "trim"], ["--files-back-max", "1s"]] {
        let said = lab.say(run.iter().chain(&option).chain(&["--", "true"]).copied());
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.stderr.contains("could forget output"), "{said:?}");
    }
}

/// A server that rewrites a part of a file for each request, and replies with the number of requests.
const REWRITING: &str = r#"exec python3 -c '
import os, random, socket, threading
size = 16 << 20
data = os.open("data", os.O_RDWR | os.O_CREAT)
if os.fstat(data).st_size < size:
    os.pwrite(data, os.urandom(size), 0)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", 0))
listener.listen(8)
open("port.new", "w").write(str(listener.getsockname()[1]))
os.rename("port.new", "port")
page = os.urandom(4096)
counted = 0
def serve(connection):
    global counted
    while connection.recv(1):
        for _ in range(128):
            os.pwrite(data, page, random.randrange(size >> 12) << 12)
        counted += 1
        connection.sendall(b"%d\n" % counted)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
'"#;

fn connect(lab: &Lab) -> TcpStream {
    let stream = until("a connection", || {
        let port: u16 = std::fs::read_to_string(lab.path("port")).ok()?.parse().ok()?;
        TcpStream::connect(("127.0.0.1", port)).ok()
    });
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// Sends a request, and returns the reply. `None` if the connection has ended.
fn request(stream: &mut TcpStream) -> Option<u64> {
    stream.write_all(b"x").ok()?;
    let mut reply = Vec::new();
    while reply.last() != Some(&b'\n') {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        reply.extend(byte);
    }
    String::from_utf8(reply).unwrap().trim().parse().ok()
}

#[test]
fn no_reply_is_forgotten_by_a_server_whose_files_cost_much() {
    let Some(lab) = lab(true) else { return };
    let options =
        ["--output", "committed", "--every", "20ms", "--files", "rewind", "--max-restarts", "99/1m"];
    let mut guarded = Guarded::run(&lab, &options, REWRITING);
    guarded.await_checkpoints(2);
    for _ in 0..4 {
        let mut stream = connect(&lab);
        let mut last = None;
        let until = std::time::Instant::now() + Duration::from_secs(1);
        while std::time::Instant::now() < until {
            last = request(&mut stream).or(last);
        }
        let before = guarded.incarnation();
        guarded.root().signal(Signal::KILL).unwrap();
        guarded.await_incarnation(before + 1);
        let next = request(&mut stream).or_else(|| request(&mut connect(&lab)));
        assert!(next > last, "{last:?} was acknowledged, and then {next:?}\n{}", guarded.said());
    }
    guarded.root().signal(Signal::TERM).unwrap();
    wait(&mut guarded.guardian);
}
