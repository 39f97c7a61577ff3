//! Tests of stateless components that are restarted from a checkpoint of their initialised state (`warm = true`).

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::system::{System, ask};
use crate::common::{supported, until};

/// Duration of the start of the component.
const START: Duration = Duration::from_secs(3);

/// A server with a slow start. The server records each start in `starts`, and appends a line to `log` for each answer.
/// When a file `order` exists, the server changes a file that it has open.
const SERVER: &str = r#"
[component.web]
command = ["python3", "-c", '''
import os, socket, time
log = open("log", "ab", buffering=0)
data = open("data", "w+b", buffering=0)
data.write(b"initial")
with open("starts", "a") as starts:
    starts.write("start\n")
time.sleep(SECONDS)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", PORT))
listener.listen(64)
answers = 0
while True:
    connection, _ = listener.accept()
    if os.path.exists("order"):
        os.unlink("order")
        data.seek(0)
        data.write(b"changed")
    answers += 1
    log.write(b"answer\n")
    connection.sendall(b"%d" % answers)
    connection.close()
''']
policy = "stateless"
warm = true
ready = { listen = true }
"#;

fn up(port: u16) -> System {
    let text = SERVER.replace("SECONDS", &START.as_secs().to_string()).replace("PORT", &port.to_string());
    let system = System::up(&text);
    system.await_state("web", "ready");
    system
}

fn await_checkpoints(system: &System, count: u64) {
    until("a checkpoint", || (system.status("web")["checkpoints"].as_u64()? >= count).then_some(()));
}

/// Kills the component. Returns the next answer and the time until the answer.
fn kill(system: &System, port: u16) -> (String, Duration) {
    let next = system.incarnation("web") + 1;
    let began = Instant::now();
    system.pid("web").signal(Signal::KILL).unwrap();
    // The program may accept a connection immediately before it dies.
    let answer = until("an answer", || ask(port).filter(|answer| !answer.is_empty()));
    let took = began.elapsed();
    system.await_incarnation("web", next);
    (answer, took)
}

#[test]
fn a_warm_component_is_back_without_its_start_and_its_log_goes_on() {
    if !supported() {
        return;
    }
    let port = testkit::free_port();
    let system = up(port);
    await_checkpoints(&system, 1);
    assert_eq!(ask(port).as_deref(), Some("1"));
    for _ in 0..3 {
        // The answer is that of the initialised state, independent of earlier answers.
        let (answer, took) = kill(&system, port);
        assert_eq!(answer, "1", "{}", system.lab.told());
        assert!(took < START / 2, "{took:?}");
    }
    assert_eq!(system.lines("starts"), ["start"]);
    assert_eq!(system.lines("log").len(), 4, "what was appended stays");
    let status = system.status("web");
    assert_eq!(status["checkpoints"], 1, "one is enough");
    assert_eq!(system.down(), Some(0));
}

#[test]
fn a_warm_component_whose_file_has_changed_starts_from_its_beginning() {
    if !supported() {
        return;
    }
    let port = testkit::free_port();
    let system = up(port);
    await_checkpoints(&system, 1);
    std::fs::write(system.lab.path("order"), "").unwrap();
    assert_eq!(ask(port).as_deref(), Some("1"));
    let (answer, took) = kill(&system, port);
    assert_eq!(answer, "1", "{}", system.lab.told());
    assert!(took > START, "{took:?}");
    assert_eq!(system.lines("starts"), ["start", "start"]);
    system.await_told("data");
    // The new incarnation (restarted program) has its own checkpoint.
    await_checkpoints(&system, 2);
    let (_, took) = kill(&system, port);
    assert!(took < START / 2, "{took:?}\n{}", system.lab.told());
    assert_eq!(system.lines("starts").len(), 2);
    assert_eq!(system.down(), Some(0));
}
