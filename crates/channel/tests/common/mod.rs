//! What tests of channels share: the channels of a test, programs in groups of their own, clients that count.
//!
//! Owns: starting and killing programs, waiting for a state.
//! Does not: test.
#![allow(dead_code, reason = "each test file uses a part")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
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

/// The component that listens, and the one that calls.
pub(crate) const SERVER: ComponentId = ComponentId(1);
pub(crate) const CLIENT: ComponentId = ComponentId(2);

/// How long a client waits for one answer: far above a restart of any program on a loaded machine.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Channels with these limits; says so where there are none.
pub(crate) fn channels(limits: Limits, clock: Clock) -> Option<Channels> {
    if let Some(why) = Channels::missing() {
        println!("unsupported: {why}");
        return None;
    }
    Some(Channels::new(ListenerHolder::start().unwrap(), limits, clock).unwrap())
}

/// The same with limits that no test reaches.
pub(crate) fn usual() -> Option<Channels> {
    channels(Limits::default(), Clock::default())
}

/// The first of these programs that is installed; says so if none is.
pub(crate) fn installed(name: &str) -> Option<PathBuf> {
    let places = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/bin"];
    let found = places.iter().map(|place| Path::new(place).join(name)).find(|path| path.exists());
    if found.is_none() {
        println!("unsupported: {name} is not installed");
    }
    found
}

/// A Python program from its text.
pub(crate) fn python(text: &str) -> Option<Command> {
    let mut command = Command::new(installed("python3")?);
    command.arg("-c").arg(text);
    Some(command)
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A program in a process group of its own, which ends with this value.
pub(crate) struct Program(pub(crate) Child);

impl Program {
    pub(crate) fn start(channels: &Channels, component: ComponentId, command: &mut Command) -> Self {
        command.stdin(Stdio::null()).process_group(0);
        Self(channels.start(component, command).unwrap())
    }

    pub(crate) fn pid(&self) -> model::Pid {
        model::Pid(self.0.id() as i32)
    }

    /// Kills all of the group, and waits until none of its processes runs. Zombies of its children are left to others.
    pub(crate) fn kill(&mut self) {
        let group = rustix::process::Pid::from_child(&self.0);
        let root = ProcessId::of(self.pid());
        let below = root.map(testkit::descendants).unwrap_or_default();
        let _is_gone = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        self.0.wait().unwrap();
        until("the end of a process group", || below.iter().all(|process| !process.is_alive()).then_some(()));
    }

    /// What it has printed, once it has ended; it was started with its output piped.
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

/// Waits until the present incarnation has its listeners.
pub(crate) fn await_listening(channels: &Channels, component: ComponentId) {
    until("a listener", || {
        let held = channels.held(component);
        held.iter().any(|listener| listener.is_taken).then_some(())
    });
}

/// Where clients go.
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

/// What clients of a server have seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) answered: AtomicUsize,
    pub(crate) refused: AtomicUsize,
    /// No file was at the path.
    pub(crate) absent: AtomicUsize,
    /// A connection that had been accepted ended without an answer.
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

/// Clients that connect, ask and read one answer, again and again.
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

    /// Waits until this many more requests are answered.
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

/// One request; the result is how many bytes of the answer came at once.
pub(crate) fn ask(server: &Server, request: &[u8]) -> std::io::Result<usize> {
    let mut stream = server.connect()?;
    answer(stream.as_mut(), request)
}

pub(crate) fn answer(stream: &mut dyn Stream, request: &[u8]) -> std::io::Result<usize> {
    stream.write_all(request)?;
    stream.read(&mut [0; 256])
}
