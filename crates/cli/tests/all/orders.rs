//! Tests of orders to a running system: what clients of a component see while an operator restarts it.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::system::System;
use crate::common::{LIMIT, supported, until};

/// Time between the close of the listening socket and the end of a component that ends slowly. A listening socket that
/// a running component has closed is released earlier.
const QUIT_MS: u64 = 3000;
/// Maximum time for which a Unix socket may have no file on a loaded machine. Without `undying`, the file is missing for
/// longer than `QUIT_MS`.
const NO_FILE: Duration = Duration::from_millis(QUIT_MS * 2 / 3);

/// The address of a component.
#[derive(Clone)]
enum At {
    Port(u16),
    Path(PathBuf),
}

impl At {
    /// Connects, and reads the answer to its end.
    fn ask(&self) -> std::io::Result<String> {
        let mut answer = String::new();
        match self {
            Self::Port(port) => {
                let mut stream = TcpStream::connect(("127.0.0.1", *port))?;
                stream.set_read_timeout(Some(LIMIT))?;
                stream.read_to_string(&mut answer).map_err(|_| ErrorKind::UnexpectedEof)?;
            }
            Self::Path(path) => {
                let mut stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(LIMIT))?;
                stream.read_to_string(&mut answer).map_err(|_| ErrorKind::UnexpectedEof)?;
            }
        }
        if answer == "well\n" { Ok(answer) } else { Err(ErrorKind::UnexpectedEof.into()) }
    }
}

/// The outcomes that the clients of one address have seen.
#[derive(Default, Debug)]
struct Met {
    answered: usize,
    /// Connections that ended without an answer.
    ended: usize,
    /// Attempts to connect that failed.
    failed: Vec<String>,
    longest_without_file: Duration,
}

/// Connects repeatedly until `is_over` is set.
fn meet(at: &At, is_over: &AtomicBool) -> Met {
    let mut met = Met::default();
    let mut file_seen = Instant::now();
    while !is_over.load(Ordering::Relaxed) {
        let outcome = at.ask();
        if !matches!(&outcome, Err(error) if error.kind() == ErrorKind::NotFound) {
            file_seen = Instant::now();
        }
        match outcome {
            Ok(_) => met.answered += 1,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => met.ended += 1,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                met.longest_without_file = met.longest_without_file.max(file_seen.elapsed());
            }
            Err(error) => met.failed.push(error.to_string()),
        }
        // Requests without a pause would occupy the processors that the components need.
        std::thread::sleep(Duration::from_millis(1));
    }
    met
}

/// Runs clients of all addresses beside `orders`, and returns their outcomes.
fn beside_clients(addresses: &[At], orders: impl FnOnce()) -> Vec<Met> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let meet = |at: &At| {
            let (at, is_over) = (at.clone(), &is_over);
            scope.spawn(move || meet(&at, is_over))
        };
        let clients: Vec<_> = addresses.iter().map(meet).collect();
        let over = testkit::SetAtEnd(&is_over);
        orders();
        drop(over);
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

/// The names of the components, and a system file with one more variable in their environment.
fn file(addresses: &[At; 4], value: u32) -> String {
    let [At::Port(fresh), At::Port(kept), At::Port(slow), At::Path(path)] = addresses else { unreachable!() };
    let component = |name: &str, words: &str, keys: &str| {
        format!(
            "[component.{name}]\ncommand = [\"PROGRAM\", \"FOLDER/{name}\", {words}]\n{keys}\n\
             environment = {{ VALUE = \"{value}\" }}\nrestart = {{ max = \"100/1m\" }}\n"
        )
    };
    let probe = |port: &u16| format!("ready = {{ tcp = \"127.0.0.1:{port}\" }}");
    let checkpointed = format!("policy = \"checkpointed\"\nevery = \"50ms\"\n{}", probe(kept));
    let path = path.display();
    [
        component("fresh", &format!("\"listen={fresh}\""), &probe(fresh)),
        component("kept", &format!("\"listen={kept}\""), &checkpointed),
        component("slow", &format!("\"listen={slow}\", \"quit={QUIT_MS}\""), &probe(slow)),
        component("path", &format!("\"path={path}\", \"quit={QUIT_MS}\""), "ready = { listen = true }"),
    ]
    .concat()
}

#[test]
fn clients_wait_while_an_operator_restarts_a_component() {
    if !supported() {
        return;
    }
    let names = ["fresh", "kept", "slow", "path"];
    let folder = tempfile::tempdir().unwrap();
    let ports = [(); 3].map(|()| At::Port(testkit::free_port()));
    let [fresh, kept, slow] = ports;
    let addresses = [fresh, kept, slow, At::Path(folder.path().join("socket"))];
    let system = System::up(&file(&addresses, 1));
    names.into_iter().for_each(|name| system.await_state(name, "ready"));
    let met = beside_clients(&addresses, || {
        for name in names {
            let said = system.call(&["restart", name]);
            assert_eq!(said.code, Some(0), "{said:?}\n{}", system.lab.told());
        }
        system.rewrite(&file(&addresses, 2));
        let before = names.map(|name| system.pid(name).pid());
        let said = system.call(&["reload"]);
        assert!(said.code == Some(0) && said.stderr.contains("restarted"), "{said:?}");
        for (name, before) in names.into_iter().zip(before) {
            until("another process", || {
                let pid = system.status(name)["pid"].as_i64()?;
                (pid != i64::from(before.get()) && system.state(name) == "ready").then_some(())
            });
        }
    });
    for (name, met) in names.into_iter().zip(met) {
        println!("{name}: {met:?}");
        let text = system.lab.told();
        assert!(met.failed.is_empty() && met.answered > 10, "{name}: {met:?}\n{text}");
        // The program accepts no connection that it does not answer.
        assert_eq!(met.ended, 0, "{name}: {met:?}\n{text}");
        assert!(met.longest_without_file < NO_FILE, "{name}: {met:?}\n{text}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "a second link of the socket remains");

    // A complaint kills the component, so a connection that it has accepted ends without an answer.
    let met = beside_clients(&addresses[..2], || {
        for name in ["fresh", "kept"] {
            let before = system.incarnation(name);
            let said = system.call(&["complain", name, "--why", "slow", "--weight", "2"]);
            assert_eq!(said.code, Some(0), "{said:?}");
            system.await_incarnation(name, before + 1);
        }
    });
    for met in met {
        assert!(met.failed.is_empty() && met.ended <= 1, "{met:?}\n{}", system.lab.told());
    }
    // A component that is stopped refuses its clients, and leaves no file.
    assert_eq!(system.call(&["stop", "fresh"]).code, Some(0));
    let At::Port(port) = addresses[0] else { unreachable!() };
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    assert_eq!(system.down(), Some(0));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_complaint_is_answered_with_what_it_counts() {
    if !supported() {
        return;
    }
    let system = System::up("[component.a]\ncommand = [\"PROGRAM\", \"FOLDER/a\"]\n");
    system.await_state("a", "ready");
    // All complaints of the operator are one voice.
    for _ in 0..2 {
        let said = system.call(&["complain", "a", "--why", "slow"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        for words in ["1 of the quorum of 2", "only the heaviest counts", "--weight 2` restarts a"] {
            assert!(said.stderr.contains(words), "{words}: {said:?}");
        }
    }
    assert_eq!(system.incarnation("a"), 1);
    until("the complaints in the metrics", || {
        let printed = system.call(&["metrics"]).stdout;
        let line = printed.lines().find(|line| line.starts_with("undying_complaints_weight"))?.to_owned();
        line.ends_with(" 1.0").then_some(())
    });
    let said = system.call(&["complain", "a", "--why", "slow", "--weight", "2"]);
    assert!(said.stderr.contains("2 of the quorum of 2, so a is restarted"), "{said:?}");
    system.await_incarnation("a", 2);
    assert_eq!(system.down(), Some(0));
}

#[test]
fn the_status_names_the_policy_of_a_component_and_the_file_of_its_system() {
    if !supported() {
        return;
    }
    const POLICIES: [&str; 3] = ["never", "stateless", "checkpointed"];
    let component = |policy: &str| {
        format!("[component.{policy}]\ncommand = [\"PROGRAM\", \"FOLDER/{policy}\"]\npolicy = \"{policy}\"\n")
    };
    let mut system = System::up(&POLICIES.map(component).concat());
    for name in POLICIES {
        system.await_state(name, "ready");
        assert_eq!(system.status(name)["policy"], name);
    }
    system.guardian.kill().unwrap();
    crate::common::wait(&mut system.guardian);
    let up = format!(
        "`undying up {} --store {}`",
        system.lab.path("system.toml").display(),
        system.lab.store().display()
    );
    for name in POLICIES {
        let status = system.status(name);
        assert_eq!(status["policy"], name);
        let because = status["unprotected_because"].as_str().unwrap();
        assert!(because.contains(&up) && because.contains("takes the system over"), "{because}");
    }
    let said = system.call(&["restart", "never"]);
    assert!(said.code == Some(3) && said.stderr.contains(&format!("help: {up} starts one")), "{said:?}");
    // The advice is followed literally.
    let words = ["up", "system.toml", "--store"];
    system.guardian =
        system.lab.undying(words.iter().map(Into::into).chain([system.lab.store()])).spawn().unwrap();
    POLICIES.into_iter().for_each(|name| system.await_state(name, "ready"));
    assert_eq!(system.down(), Some(0));
}

#[test]
fn a_unix_listener_with_a_relative_name_is_restored() {
    if !supported() {
        return;
    }
    let system = System::up(
        "[component.a]\nneeds = [\"make\"]\ncommand = [\"sh\", \"-c\", \"PROGRAM FOLDER/a path=below/socket; true\"]\ndirectory = \"FOLDER\"\n\
         policy = \"checkpointed\"\nevery = \"30ms\"\nready = { listen = true }\nrestart = { max = \"100/1m\" }\n\
         [component.make]\ncommand = [\"sh\", \"-c\", \"mkdir -p FOLDER/below; sleep 1000\"]\n\
         ready = { exec = [\"test\", \"-d\", \"FOLDER/below\"] }\n",
    );
    system.await_state("a", "ready");
    let at = At::Path(system.lab.path("below/socket"));
    for number in 1..=3 {
        assert_eq!(at.ask().unwrap(), "well\n");
        let checkpoints = system.status("a")["checkpoints"].as_u64().unwrap();
        until("checkpoints", || {
            (system.status("a")["checkpoints"].as_u64()? > checkpoints + 1).then_some(())
        });
        system.pid("a").signal(Signal::KILL).unwrap();
        system.await_incarnation("a", number + 1);
    }
    assert_eq!(at.ask().unwrap(), "well\n");
    assert_eq!(system.lines("a").len(), 1, "it was started again: {}", system.lab.told());
    assert_eq!(system.down(), Some(0));
}
