//! Helpers that the tests of channels share: channels, programs in their own process groups, and clients that count.
//!
//! Owns: starting and killing programs, and waiting for a state.
//! Does not: contain tests.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use sys::clock::Clock;
use sys::listener_holder::ListenerHolder;
use testkit::{ProcessId, until};
use undying_channel::{Channels, ComponentId, Limits};

/// The component that listens (`SERVER`), and the component that connects (`CLIENT`).
pub(crate) const SERVER: ComponentId = ComponentId(1);
pub(crate) const CLIENT: ComponentId = ComponentId(2);

/// Maximum time for which a client waits for one response. A restart of any program takes much less time, even on a
/// loaded machine.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Creates channels with these limits. Prints the reason if this machine does not support channels.
pub(crate) fn channels(limits: Limits, clock: Clock) -> Option<Channels> {
    if let Some(why) = Channels::missing() {
        println!("unsupported: {why}");
        return None;
    }
    Some(Channels::new(ListenerHolder::start(|create| create()).unwrap(), limits, clock).unwrap())
}

/// Creates channels with the default limits, which no test reaches.
pub(crate) fn usual() -> Option<Channels> {
    channels(Limits::default(), Clock::default())
}

/// Returns the path of a program if it is installed. Prints a message otherwise.
pub(crate) fn installed(name: &str) -> Option<PathBuf> {
    let places = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/bin"];
    let found = places.iter().map(|place| Path::new(place).join(name)).find(|path| path.exists());
    if found.is_none() {
        println!("unsupported: {name} is not installed");
    }
    found
}

/// Returns a command that runs a Python program.
pub(crate) fn python(text: &str) -> Option<Command> {
    let mut command = Command::new(installed("python3")?);
    command.arg("-c").arg(text);
    Some(command)
}

/// A program in its own process group. Drop kills the group.
pub(crate) struct Program(pub(crate) Child);

impl Program {
    pub(crate) fn start(channels: &Channels, component: ComponentId, command: &mut Command) -> Self {
        command.stdin(Stdio::null()).process_group(0);
        Self::start_with_input(channels, component, command)
    }

    /// Starts the program with its own standard input and process group.
    pub(crate) fn start_with_input(
        channels: &Channels,
        component: ComponentId,
        command: &mut Command,
    ) -> Self {
        let pending = channels.prepare(component, command).unwrap();
        let program = Self(command.spawn().unwrap());
        channels.started(component, pending, false).unwrap();
        program
    }

    pub(crate) fn pid(&self) -> model::Pid {
        model::Pid(self.0.id() as i32)
    }

    /// Kills the process group, and waits until all processes of the tree have ended. Other processes reap the zombies
    /// of the program's children.
    pub(crate) fn kill(&mut self) {
        let group = rustix::process::Pid::from_child(&self.0);
        let root = ProcessId::of(self.pid());
        let below = root.map(testkit::descendants).unwrap_or_default();
        let _is_gone = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        self.0.wait().unwrap();
        until("the end of a process group", || below.iter().all(|process| !process.is_alive()).then_some(()));
    }

    /// Waits for the end of the program, and returns its output. The program must have been started with a pipe as
    /// output.
    pub(crate) fn output(&mut self) -> String {
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        self.0.wait().unwrap();
        text
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until the current incarnation has a listening socket.
pub(crate) fn await_listening(channels: &Channels, component: ComponentId) {
    until("a listener", || {
        let held = channels.held(component);
        held.iter().any(|listener| listener.is_taken).then_some(())
    });
}

/// The server to which clients connect.
#[derive(Clone, Debug)]
pub(crate) enum Server {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

pub(crate) trait Stream: Read + Write + Send {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

impl Server {
    pub(crate) fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_read_timeout(Some(ANSWER_LIMIT))?;
                Box::new(stream)
            }
            Self::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(ANSWER_LIMIT))?;
                Box::new(stream)
            }
        })
    }
}

/// Numbers of outcomes that the clients of a server have seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) answered: AtomicUsize,
    pub(crate) refused: AtomicUsize,
    /// The path did not exist.
    pub(crate) absent: AtomicUsize,
    /// An accepted connection ended without a response.
    pub(crate) ended: AtomicUsize,
    pub(crate) late: AtomicUsize,
    stop: AtomicBool,
}

impl Seen {
    pub(crate) fn get(count: &AtomicUsize) -> usize {
        count.load(Ordering::Relaxed)
    }

    fn note(&self, outcome: &std::io::Result<usize>) {
        let count = match outcome {
            Ok(0) => &self.ended,
            Ok(_) => &self.answered,
            Err(error) => match error.kind() {
                ErrorKind::ConnectionRefused => &self.refused,
                ErrorKind::NotFound => &self.absent,
                ErrorKind::WouldBlock | ErrorKind::TimedOut => &self.late,
                _ => &self.ended,
            },
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Clients that repeatedly connect, send a request and read one response.
pub(crate) struct Clients {
    pub(crate) seen: Arc<Seen>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    pub(crate) fn start(server: &Server, request: &'static [u8], count: usize) -> Self {
        let seen = Arc::new(Seen::default());
        let one = |_| {
            let (seen, server) = (Arc::clone(&seen), server.clone());
            std::thread::spawn(move || {
                while !seen.stop.load(Ordering::Relaxed) {
                    seen.note(&ask(&server, request));
                }
            })
        };
        let threads = (0..count).map(one).collect();
        Self { seen, threads }
    }

    /// Waits until the given number of further requests are answered.
    pub(crate) fn await_answers(&self, more: usize) {
        let before = Seen::get(&self.seen.answered);
        until("answers", || (Seen::get(&self.seen.answered) >= before + more).then_some(()));
    }

    pub(crate) fn stop(self) -> Arc<Seen> {
        self.seen.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.seen
    }
}

/// Sends one request. Returns the number of bytes in the first read of the response.
pub(crate) fn ask(server: &Server, request: &[u8]) -> std::io::Result<usize> {
    let mut stream = server.connect()?;
    answer(stream.as_mut(), request)
}

pub(crate) fn answer(stream: &mut dyn Stream, request: &[u8]) -> std::io::Result<usize> {
    stream.write_all(request)?;
    stream.read(&mut [0; 256])
}
