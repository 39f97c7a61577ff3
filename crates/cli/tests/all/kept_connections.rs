//! Tests of connections to peers outside the process tree when the program dies. A connection without traffic since the
//! checkpoint stays open. Any other connection ends: it never continues with a gap or a repeated reply. If the output
//! is held until a checkpoint contains it (`--output committed`), connections in use continue.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::common::system::System;
use crate::common::{Guarded, Lab, supported, until};

/// Maximum time until a reply, including a restart.
const LIMIT: Duration = Duration::from_secs(30);

/// A server that answers each line with the number of lines on the connection. It closes the connection on request.
const SERVER: &str = r#"exec python3 -c '
import os, selectors, socket
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", 0))
listener.listen(64)
with open("port.new", "w") as file:
    file.write(str(listener.getsockname()[1]))
os.rename("port.new", "port")
selector = selectors.DefaultSelector()
selector.register(listener, selectors.EVENT_READ)
counts = {}
while not os.path.exists("stop"):
    for key, _ in selector.select(0.02):
        if key.fileobj is listener:
            connection, _ = listener.accept()
            selector.register(connection, selectors.EVENT_READ)
            counts[connection.fileno()] = 0
            continue
        connection = key.fileobj
        try:
            said = connection.recv(4096)
            if said and said != b"close\n":
                counts[connection.fileno()] += 1
                # A restored connection can have ended since the recv().
                connection.sendall(b"%d\n" % counts[connection.fileno()])
                continue
        except OSError:
            pass
        selector.unregister(connection)
        connection.close()
'"#;

/// A client with one connection.
struct Client {
    stream: BufReader<TcpStream>,
    asked: u64,
}

impl Client {
    fn connect(lab: &Lab) -> Self {
        // Between two incarnations (runs of the program), no socket listens. A program that is restored from a checkpoint of
        // its start listens at another port.
        let stream = until("the server", || {
            let port: u16 = std::fs::read_to_string(lab.path("port")).ok()?.parse().ok()?;
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream), asked: 0 }
    }

    /// Sends a line. Returns whether the connection still answers. Asserts that the reply is the next number.
    fn ask(&mut self) -> bool {
        let mut reply = String::new();
        let sent = self.stream.get_mut().write_all(b"question\n");
        let outcome = sent.and_then(|()| self.stream.read_line(&mut reply));
        match outcome {
            Ok(1..) => {
                self.asked += 1;
                assert_eq!(reply, format!("{}\n", self.asked), "a connection that stayed has a gap");
                true
            }
            Ok(0) => false,
            Err(error) => {
                let is_end = matches!(
                    error.kind(),
                    std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe
                );
                assert!(is_end, "a connection neither answers nor ends: {error}");
                false
            }
        }
    }
}

/// Returns the numbers of connections that stayed open and that ended, for each restore.
fn told(lab: &Lab) -> Vec<(u64, u64)> {
    told_of(lab, "connections")
        .iter()
        .filter_map(|event| Some((event["kept"].as_u64()?, event["ended"].as_u64()?)))
        .collect()
}

/// Returns how many connections have stayed open, and how many have ended, at all deaths.
fn outcomes(lab: &Lab) -> (u64, u64) {
    told(lab).iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

fn told_of(lab: &Lab, kind: &str) -> Vec<Value> {
    let said = lab.say(["events", "job", "--json"]).stdout;
    let events = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter(|event| event["event"] == kind).collect()
}

/// Options that hold the output until the next checkpoint.
const COMMITTED: [&str; 6] = ["--output", "committed", "--files", "keep", "--max-restarts", "1000/1m"];

fn can_hold() -> bool {
    const MISSING: i32 = 4;
    if !supported() {
        return false;
    }
    let said = Lab::new().say(["run", "--output", "committed", "--every", "50ms", "--", "true"]);
    if said.code == Some(MISSING) {
        println!("unsupported: {}", said.stderr.lines().next().unwrap_or_default());
    }
    said.code != Some(MISSING)
}

#[test]
fn connections_that_nothing_passes_through_stay_over_deaths() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let guarded = Guarded::run(&lab, &[], SERVER);
    let mut clients: Vec<Client> = (0..4).map(|_| Client::connect(&lab)).collect();
    for round in 1..=3_u64 {
        assert!(clients.iter_mut().all(Client::ask));
        guarded.await_checkpoints(4);
        guarded.kill_root();
        // Data that is sent to a dead program waits for the next incarnation.
        assert!(clients.iter_mut().all(Client::ask), "round {round}: {:?}\n{}", told(&lab), guarded.said());
        guarded.await_incarnation(round + 1);
    }
    assert_eq!(told(&lab), [(4, 0); 3]);
    assert_eq!(guarded.end(), 0);
}

#[test]
fn a_connection_goes_on_without_a_gap_or_ends() {
    if !supported() {
        return;
    }
    let mut random = testkit::seeded("kept connections");
    let seed = random.u64(..);
    let lab = Lab::new();
    let guarded = Guarded::run(&lab, &["--max-restarts", "1000/1m"], SERVER);
    drop(Client::connect(&lab));
    guarded.await_checkpoints(3);
    let (is_over, asked, ended) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // On a loaded machine, checkpoints can be a second apart. A connection that rests for longer is kept.
        for rest_max_ms in [0, 40, 80, 120, 160, 4000] {
            let (lab, is_over, asked, ended) = (&lab, &is_over, &asked, &ended);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed ^ rest_max_ms);
                let mut client = Client::connect(lab);
                while !is_over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(random.u64(rest_max_ms / 2..=rest_max_ms)));
                    if client.ask() {
                        asked.fetch_add(1, Ordering::Relaxed);
                    } else {
                        ended.fetch_add(1, Ordering::Relaxed);
                        client = Client::connect(lab);
                    }
                }
            });
        }
        let over = testkit::SetAtEnd(&is_over);
        let mut rounds = testkit::Rounds::new(8, 200);
        while rounds.next(matches!(outcomes(&lab), (1.., 1..))).is_some() {
            guarded.await_checkpoints(1);
            std::thread::sleep(Duration::from_millis(random.u64(0..250)));
            guarded.kill();
        }
        drop(over);
    });
    let (kept, lost) = outcomes(&lab);
    println!("{asked:?} replies, {ended:?} ends seen; told: {kept} stayed, {lost} ended");
    assert!(kept > 0 && lost > 0 && asked.into_inner() > 100);
    assert_eq!(guarded.end(), 0);
}

#[test]
fn the_end_of_an_idle_connection_is_seen_before_the_next_checkpoint() {
    const EVERY: Duration = Duration::from_millis(900);
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let guarded = Guarded::run(&lab, &["--every", "900ms"], SERVER);
    let mut clients: Vec<Client> = (0..8).map(|_| Client::connect(&lab)).collect();
    guarded.await_checkpoints(3);
    let mut waits: Vec<Duration> = clients
        .iter_mut()
        .map(|client| {
            client.stream.get_mut().write_all(b"close\n").unwrap();
            let began = Instant::now();
            assert_eq!(client.stream.read(&mut [0]).unwrap(), 0);
            began.elapsed()
        })
        .collect();
    waits.sort_unstable();
    // On a loaded machine, some ends wait for a processor.
    assert!(waits[waits.len() / 2] < EVERY / 3, "{waits:?}");
    assert_eq!(guarded.end(), 0);
}

#[test]
fn connections_in_use_go_on_without_a_gap() {
    if !can_hold() {
        return;
    }
    let mut random = testkit::seeded("connections in use");
    let seed = random.u64(..);
    let lab = Lab::new();
    let guarded = Guarded::run(&lab, &COMMITTED, SERVER);
    let clients: Vec<Client> = (0..5).map(|_| Client::connect(&lab)).collect();
    // A connection that no checkpoint contains ends with the program.
    guarded.await_checkpoints(3);
    let (is_over, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for (number, mut client) in clients.into_iter().enumerate() {
            let (is_over, asked) = (&is_over, &asked);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed ^ number as u64);
                while !is_over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(random.u64(0..=60 * number as u64)));
                    assert!(client.ask(), "client {number} met an end");
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let over = testkit::SetAtEnd(&is_over);
        for _ in 0..testkit::rounds(8, 200) {
            // A peer retransmits at increasing intervals, and at least one retransmission must reach a running program.
            guarded.await_checkpoints(2);
            std::thread::sleep(Duration::from_millis(random.u64(0..300)));
            guarded.kill();
        }
        drop(over);
    });
    let all = told_of(&lab, "connections");
    let sum = |name: &str| all.iter().filter_map(|event| event[name].as_u64()).sum::<u64>();
    println!("{asked:?} replies; {} went back, {} stayed open", sum("rewound"), sum("kept"));
    assert_eq!(sum("ended"), 0, "{}", guarded.said());
    assert!(sum("rewound") > 0 && asked.into_inner() > 20);
    assert_eq!(guarded.end(), 0);
}

/// A server that answers each line with a number. For the line `much`, it sends 32 MiB in which each four bytes are
/// their own place, as fast as the client reads. Its listening socket does not have SO_REUSEADDR.
const GENEROUS: &str = r#"exec python3 -c '
import array, os, selectors, socket
much = memoryview(array.array("I", range(8 << 20))).cast("B")
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(64)
with open("port.new", "w") as file:
    file.write(str(listener.getsockname()[1]))
os.rename("port.new", "port")
selector = selectors.DefaultSelector()
selector.register(listener, selectors.EVENT_READ, [0, None])
while not os.path.exists("stop"):
    for key, ready in selector.select(0.02):
        connection, state = key.fileobj, key.data
        if connection is listener:
            connection, _ = listener.accept()
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ, [0, None])
        elif ready & selectors.EVENT_WRITE:
            state[1] = state[1][connection.send(state[1]):]
            if not state[1]:
                selector.modify(connection, selectors.EVENT_READ, state)
        else:
            said = connection.recv(4096)
            if said == b"much\n":
                state[1] = much
                selector.modify(connection, selectors.EVENT_WRITE, state)
            elif said:
                state[0] += 1
                connection.send(b"%d\n" % state[0])
            else:
                selector.unregister(connection)
                connection.close()
'"#;

/// Returns the number of bytes that a process has written to disks.
fn bytes_written(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    let count = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    count.unwrap().parse().unwrap()
}

/// Before, each checkpoint saved the whole queues, and everybody waited for a checkpoint of many megabytes.
#[test]
fn clients_that_do_not_read_delay_only_themselves_and_lose_no_byte() {
    if !can_hold() {
        return;
    }
    const SLOW: usize = 4;
    let lab = Lab::new();
    let guarded = Guarded::run(&lab, &COMMITTED, GENEROUS);
    let mut quick = Client::connect(&lab);
    assert!(quick.ask());
    let slow: Vec<Client> = (0..SLOW).map(|_| Client::connect(&lab)).collect();
    let connections = slow.iter().map(|client| client.stream.get_ref());
    connections.clone().for_each(|mut connection| connection.write_all(b"much\n").unwrap());
    // The queues become full.
    let waiting =
        || connections.clone().map(|one| rustix::io::ioctl_fionread(one).unwrap() as usize).collect();
    let mut before: Vec<usize> = waiting();
    until("full queues", || {
        std::thread::sleep(Duration::from_millis(500));
        let now: Vec<usize> = waiting();
        (std::mem::replace(&mut before, now.clone()) == now && now.iter().all(|one| *one > 0)).then_some(())
    });
    let (written, checkpoints) = (bytes_written(guarded.guardian.id()), durable(&lab).unwrap());
    for _ in 0..100 {
        assert!(quick.ask());
    }
    let written = bytes_written(guarded.guardian.id()) - written;
    let each = written / (durable(&lab).unwrap() - checkpoints);
    println!("{each} bytes for each checkpoint");
    // The queues together contain 10 MiB.
    assert!(each < 1 << 20, "{each} bytes for each checkpoint");
    // The queues come back after a death. Each byte of the replies arrives once.
    guarded.await_checkpoints(2);
    guarded.kill();
    assert!(quick.ask());
    let expected: Vec<u8> = (0..8_u32 << 20).flat_map(u32::to_le_bytes).collect();
    std::thread::scope(|scope| {
        for mut client in slow {
            let expected = &expected;
            scope.spawn(move || {
                let mut reply = vec![0; expected.len()];
                client.stream.read_exact(&mut reply).unwrap();
                assert!(reply == *expected);
                assert!(client.ask());
            });
        }
    });
    assert_eq!(guarded.end(), 0);
}

#[test]
fn no_reply_comes_before_a_checkpoint_has_it() {
    if !can_hold() {
        return;
    }
    let lab = Lab::new();
    let guarded = Guarded::run(&lab, &["--output", "committed", "--files", "keep", "--every", "1s"], SERVER);
    let mut client = Client::connect(&lab);
    guarded.await_checkpoints(2);
    let began = Instant::now();
    for _ in 0..4 {
        assert!(client.ask());
    }
    // Each reply waits for a further checkpoint.
    assert!(began.elapsed() > Duration::from_secs(2), "{:?}", began.elapsed());
    // The reply that was not sent is lost with the program. The next incarnation handles the line again, and replies
    // once.
    client.stream.get_mut().write_all(b"question\n").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    guarded.root().signal(Signal::KILL).unwrap();
    let mut reply = String::new();
    client.stream.read_line(&mut reply).unwrap();
    assert_eq!(reply, "5\n");
    assert_eq!(guarded.end(), 0);
}

/// Connects to a server and waits for its first reply. Returns the newest durable checkpoint at this time.
fn durable_at_the_first_reply(lab: &Lab) -> Option<u64> {
    let mut client = Client::connect(lab);
    assert!(client.ask());
    durable(lab)
}

/// Returns the newest durable checkpoint.
fn durable(lab: &Lab) -> Option<u64> {
    let rows: Value = serde_json::from_str(&lab.say(["ls", "job", "--json"]).stdout).unwrap();
    let committed = rows.as_array().unwrap().iter().filter(|row| row["committed"] == true);
    committed.filter_map(|row| row["seq"].as_u64()).max()
}

/// A listening socket is marked in its listen(2) and in a restore, and its connections inherit the mark. Otherwise,
/// replies before the next pause are forgotten at a death.
#[test]
fn the_first_reply_of_a_new_server_waits_for_a_checkpoint() {
    if !can_hold() {
        return;
    }
    let lab = Lab::new();
    let guarded =
        Guarded::run(&lab, &["--output", "committed", "--files", "rewind", "--every", "1s"], SERVER);
    assert!(durable_at_the_first_reply(&lab).is_some(), "a reply came before the first checkpoint");
    guarded.await_checkpoints(2);
    guarded.root().signal(Signal::KILL).unwrap();
    let back = || told_of(&lab, "restored").last().and_then(|event| event["seq"].as_u64());
    let back = until("a restore", back);
    assert!(durable_at_the_first_reply(&lab) > Some(back), "a reply came before the checkpoint after {back}");
    assert_eq!(guarded.end(), 0);
    let keys = "policy = \"checkpointed\"\nevery = \"1s\"\noutput = \"committed\"\ndirectory = \"FOLDER\"\n";
    let system = System::up(&format!("[component.job]\ncommand = [\"sh\", \"-c\", {SERVER:?}]\n{keys}"));
    let durable = durable_at_the_first_reply(&system.lab);
    assert!(durable.is_some(), "a reply of a component came before its first checkpoint");
    system.down();
}

/// With MSG_FASTOPEN, a send connects its socket, and connect(2) is not called.
#[test]
fn data_on_a_connection_that_the_program_opens_waits_for_a_checkpoint() {
    if !can_hold() {
        return;
    }
    let peer = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = peer.local_addr().unwrap().port();
    for send in [
        "s.connect(peer); s.sendall(b\"x\")",
        "s.setblocking(False); s.connect_ex(peer); time.sleep(0.01); s.sendall(b\"x\")",
        "s.sendto(b\"x\", socket.MSG_FASTOPEN, peer)",
        "s.sendmsg([b\"x\"], [], socket.MSG_FASTOPEN, peer)",
    ] {
        let script = format!(
            "exec python3 -c '\n\
             import os, socket, time\n\
             peer = (\"127.0.0.1\", {port})\n\
             while not os.path.exists(\"go\"): time.sleep(0.002)\n\
             s = socket.socket()\n\
             {send}\n\
             while not os.path.exists(\"stop\"): time.sleep(0.02)\n'"
        );
        let lab = Lab::new();
        let guarded =
            Guarded::run(&lab, &["--output", "committed", "--files", "rewind", "--every", "1s"], &script);
        guarded.await_checkpoints(2);
        let before = durable(&lab);
        std::fs::write(lab.path("go"), "").unwrap();
        let (mut stream, _) = peer.accept().unwrap();
        stream.read_exact(&mut [0]).unwrap();
        assert!(durable(&lab) > before, "{send}: data came before the checkpoint after {before:?}");
        assert_eq!(guarded.end(), 0);
    }
}

/// A component whose files are not watched has another filter.
#[test]
fn data_on_a_connection_that_a_component_opens_waits_for_a_checkpoint() {
    if !can_hold() {
        return;
    }
    let peer = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = peer.local_addr().unwrap().port();
    for files in ["rewind", "keep"] {
        let system = System::up(&format!(
            "[component.job]\ncommand = [\"python3\", \"-c\", '''\nimport os, socket, time\n\
             while not os.path.exists(\"FOLDER/go\"): time.sleep(0.002)\n\
             s = socket.create_connection((\"127.0.0.1\", {port}))\ns.sendall(b\"x\")\ntime.sleep(600)\n''']\n\
             policy = \"checkpointed\"\nevery = \"1s\"\noutput = \"committed\"\nfiles = \"{files}\"\n"
        ));
        until("checkpoints", || (system.status("job")["checkpoints"].as_u64()? > 1).then_some(()));
        let before = durable(&system.lab);
        std::fs::write(system.lab.path("go"), "").unwrap();
        let (mut stream, _) = peer.accept().unwrap();
        stream.read_exact(&mut [0]).unwrap();
        assert!(durable(&system.lab) > before, "{files}: data came before the checkpoint after {before:?}");
        assert_eq!(system.down(), Some(0));
    }
}

#[test]
fn sockets_whose_output_is_not_held_are_reported() {
    const SCRIPT: &str = r#"exec python3 -c '
import os, socket, time
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("127.0.0.1", 0))
local = socket.socket(socket.AF_UNIX)
local.bind("local")
local.listen()
served = socket.create_server(("127.0.0.1", 0))
while not os.path.exists("stop"):
    time.sleep(0.02)
'"#;
    if !can_hold() {
        return;
    }
    let lab = Lab::new();
    let guarded = Guarded::run(&lab, &["--output", "committed", "--files", "rewind"], SCRIPT);
    until("the sockets", || (guarded.status()["connections"]["unheld"] == 2).then_some(()));
    let said = lab.say(["status", "job"]).stdout;
    assert!(said.contains("can forget answers that a peer has: output of 2 UDP or Unix sockets"), "{said}");
    assert_eq!(guarded.end(), 0);
}

/// A listener of MPTCP accepts plain TCP connections, too. A service manager passes a listener to the program.
#[test]
fn the_first_reply_waits_whatever_the_listener_is() {
    const CREATE: &str = "socket.socket()";
    const BIND: &str = "listener.bind((\"127.0.0.1\", 0))\n";
    if !can_hold() {
        return;
    }
    let mptcp = std::fs::read_to_string("/proc/sys/net/mptcp/enabled").is_ok_and(|text| text.trim() == "1");
    let variants = [mptcp.then(|| SERVER.replace(CREATE, "socket.socket(proto=262)")), None];
    for server in variants {
        let lab = Lab::new();
        let options = ["run", "--name", "job", "--output", "committed", "--files", "rewind", "--every", "1s"];
        let script = server
            .clone()
            .unwrap_or_else(|| SERVER.replace(CREATE, "socket.socket(fileno=0)").replace(BIND, ""));
        let mut command = lab.undying(options.into_iter().chain(["--", "sh", "-c", script.as_str()]));
        if server.is_none() {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            command.stdin(std::os::fd::OwnedFd::from(listener));
        }
        let guarded = Guarded { lab: &lab, guardian: command.spawn().unwrap() };
        assert!(
            durable_at_the_first_reply(&lab).is_some(),
            "a reply came before the first checkpoint: {script}"
        );
        assert_eq!(guarded.end(), 0);
    }
}

#[test]
fn output_that_would_wait_for_more_than_a_second_is_refused() {
    let lab = Lab::new();
    let said = lab.say(["run", "--output", "committed", "--every", "2s", "--", "true"]);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(
        said.stderr.contains("would wait for more than a second") && said.stderr.contains("--every 20ms")
    );
}

/// A program that closes each connection after 300 ms. It does not remove the connection from its epoll set; the kernel
/// does.
const CLOSER: &str = r#"exec python3 -c '
import os, select, socket, time
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(64)
with open("port.new", "w") as file:
    file.write(str(listener.getsockname()[1]))
os.rename("port.new", "port")
epoll = select.epoll()
epoll.register(listener, select.EPOLLIN)
open_since = {}
while not os.path.exists("stop"):
    for number, _ in epoll.poll(0.02):
        if number == listener.fileno():
            connection, _ = listener.accept()
            epoll.register(connection, select.EPOLLIN)
            open_since[connection.fileno()] = (connection, time.monotonic())
    for number, (connection, since) in list(open_since.items()):
        if time.monotonic() - since > 0.3:
            del open_since[number]
            connection.close()
'"#;

#[test]
fn what_a_program_closes_ends_although_its_epoll_set_still_has_it() {
    let more: &[&[&str]] =
        if can_hold() { &[&[], &["--output", "committed", "--files", "keep"]] } else { &[&[]] };
    if !supported() {
        return;
    }
    for options in more {
        let lab = Lab::new();
        let guarded = Guarded::run(&lab, options, CLOSER);
        for _ in 0..3 {
            let mut client = Client::connect(&lab);
            let began = Instant::now();
            assert_eq!(client.stream.read(&mut [0]).unwrap(), 0);
            assert!(began.elapsed() < Duration::from_secs(3), "{options:?}: {:?}", began.elapsed());
        }
        guarded.await_checkpoints(5);
        let refused = guarded.status()["refusals"].to_string();
        assert!(!refused.contains("epoll"), "{options:?}: {refused}");
        assert_eq!(guarded.end(), 0);
    }
}
