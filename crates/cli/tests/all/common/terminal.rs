//! A shell on a pseudo terminal, for tests of terminal output.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::Winsize;

use super::Lab;

pub(crate) const PROMPT: &str = "OUTER> ";
/// Maximum delay until the end of the terminal is detected.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// An interactive shell that leads a session on a pseudo terminal.
pub(crate) struct Terminal<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) shell: Child,
    /// The master side of the terminal; `None` after the terminal was hung up.
    pub(crate) master: Option<File>,
    reader: Option<(JoinHandle<()>, Arc<AtomicBool>)>,
    pub(crate) screen: Arc<Mutex<String>>,
    /// Number of bytes of the screen text that earlier expectations have consumed.
    pub(crate) seen: usize,
}

impl<'a> Terminal<'a> {
    pub(crate) fn open(lab: &'a Lab) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave: OwnedFd =
            rustix::fs::open(std::ffi::OsStr::from_bytes(name.as_bytes()), flags, Mode::empty()).unwrap();
        let mut command = Command::new("setsid");
        command.args([
            "--ctty",
            "env",
            "--default-signal",
            "bash",
            "--norc",
            "--noprofile",
            "--noediting",
            "-i",
        ]);
        let stream = || Stdio::from(slave.try_clone().unwrap());
        command.stdin(stream()).stdout(stream()).stderr(stream()).current_dir(lab.path(""));
        command
            .env("PS1", PROMPT)
            .env("TERM", "dumb")
            .env("HISTFILE", "/dev/null")
            .env_remove("PROMPT_COMMAND");
        command.env("UNDYING", env!("CARGO_BIN_EXE_undying")).env("STORE", lab.store());
        let shell = lab.guard.mark(&mut command).spawn().unwrap();
        let screen = Arc::new(Mutex::new(String::new()));
        let mut reader = File::from(master.try_clone().unwrap());
        let (shown, is_over) = (Arc::clone(&screen), Arc::new(AtomicBool::new(false)));
        let ended = Arc::clone(&is_over);
        let reads = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while !ended.load(Ordering::Relaxed) {
                let mut waited = [PollFd::new(&reader, PollFlags::IN)];
                if poll(&mut waited, Some(&POLL_INTERVAL)).unwrap_or(0) == 0 {
                    continue;
                }
                let Ok(count @ 1..) = reader.read(&mut bytes) else { return };
                shown.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        let reader = Some((reads, is_over));
        let master = Some(File::from(master));
        let mut terminal = Self { lab, shell, master, reader, screen, seen: 0 };
        terminal.expect(PROMPT);
        terminal
    }

    /// Closes the master side of the terminal, like a closed window does.
    pub(crate) fn hang_up(&mut self) {
        if let Some((reads, is_over)) = self.reader.take() {
            is_over.store(true, Ordering::Relaxed);
            reads.join().unwrap();
        }
        self.master = None;
    }

    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(self.master.as_ref().unwrap(), size).unwrap();
    }

    pub(crate) fn send(&mut self, text: &str) {
        self.master.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Waits until the text appears after the previously expected text.
    pub(crate) fn expect(&mut self, text: &str) {
        self.expect_all(&[text]);
    }

    /// Waits until all texts appear, in any order, after the previously expected text.
    pub(crate) fn expect_all(&mut self, texts: &[&str]) {
        let deadline = std::time::Instant::now() + super::LIMIT;
        loop {
            let screen = self.screen.lock().unwrap().clone();
            let end_of = |text: &&str| screen[self.seen..].find(text).map(|at| self.seen + at + text.len());
            if let Some(ends) = texts.iter().map(end_of).collect::<Option<Vec<_>>>() {
                self.seen = ends.into_iter().max().unwrap_or(self.seen);
                return;
            }
            assert!(
                std::time::Instant::now() < deadline,
                "no {texts:?} after {:?}; {}",
                &screen[self.seen..],
                self.lab.guard.describe()
            );
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }

    /// Asserts that the shell with this prompt executes commands, and that the terminal is in the usual modes of a
    /// shell.
    pub(crate) fn is_usable(&mut self, prompt: &str) {
        self.send(
            "echo al''ive; stty -a | tr ' ' '\\n' | grep -x -e icanon -e isig -e echo | sort | tr '\\n' ,\n",
        );
        self.expect("alive\r\necho,icanon,isig,");
        self.expect(prompt);
    }
}
