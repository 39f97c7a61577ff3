//! Unread bytes of a pseudo terminal, in both directions.
//!
//! Owns: reading and rewriting these bytes within the pause, and writing them into a new pair.
//! Invariants: bytes are rewritten exactly as they were read. If the modes would change, echo or discard them,
//! neutral modes are set during the write. No operation blocks.
//! Does not: read an unfinished line (canonical mode), or a control status of packet mode.
//!
//! The kernel has no way to peek these bytes. If this program is killed in the few microseconds between reading and
//! rewriting them, the subject loses the bytes.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno as E;
use sys::clock::Deadline;
use sys::terminal::{self, Modes, NO_CHARACTER};
use sys::{Errno, Error, Result};

/// Maximum number of lines or reads from one direction. The kernel holds a few pages.
const READS_MAX: usize = 65_536;
/// Length of the longest line that the kernel holds, in bytes.
const LINE_BYTES_MAX: usize = 4096;
/// Timeout for the kernel's worker to transfer written bytes to the other end. The worker needs microseconds.
const TRANSFER_TIMEOUT: Duration = Duration::from_millis(500);

// Modes of termios(3).
const ISTRIP: u32 = 0o40;
const INLCR: u32 = 0o100;
const IGNCR: u32 = 0o200;
const ICRNL: u32 = 0o400;
const IUCLC: u32 = 0o1000;
const IXON: u32 = 0o2000;
const PARMRK: u32 = 0o10;
const OPOST: u32 = 0o1;
const ONLCR: u32 = 0o4;
const OTHER_OUTPUT: u32 = 0o2 | 0o10 | 0o20 | 0o40 | 0o100 | 0o14_000;
const ISIG: u32 = 0o1;
const ICANON: u32 = 0o2;
const ECHO: u32 = 0o10;
const ECHONL: u32 = 0o100;
const EXTPROC: u32 = 0o200_000;
const VEOF: usize = 4;
const VTIME: usize = 5;
const VMIN: usize = 6;
const VEOL: usize = 11;
const VEOL2: usize = 16;
/// The usual end-of-file character, Ctrl-D.
const USUAL_EOF: u8 = 4;

/// Bytes that the slave has not read.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Input {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) bytes: Vec<u8>,
    /// Set when the end-of-file character ended the bytes. A read returns these bytes without waiting, even if there
    /// are none.
    #[prost(bool, tag = "2")]
    pub(super) ended: bool,
}

/// Unread bytes of both directions.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Queues {
    #[prost(message, repeated, tag = "1")]
    pub(super) to_slave: Vec<Input>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) to_master: Vec<u8>,
}

/// The two ends of a pair. The slave must be a non-blocking description of this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair<'a> {
    pub(super) master: BorrowedFd<'a>,
    pub(super) slave: BorrowedFd<'a>,
}

impl Pair<'_> {
    /// Copies the unread bytes: reads and rewrites them. Called inside the pause.
    pub(super) fn copy(&self, modes: &Modes) -> Result<Queues> {
        let to_slave = take_input(self.slave, modes)?;
        self.put_input(&to_slave, modes)?;
        let to_master = self.take_output()?;
        self.put_output(&to_master, modes)?;
        Ok(Queues { to_slave, to_master })
    }

    /// Fills an empty pair whose modes are set.
    pub(super) fn fill(&self, queues: &Queues, modes: &Modes) -> Result<()> {
        self.put_input(&queues.to_slave, modes)?;
        self.put_output(&queues.to_master, modes)
    }

    /// Reads the output. The output of a stopped terminal (Ctrl-S) is not read, since it could not be rewritten.
    fn take_output(&self) -> Result<Vec<u8>> {
        let mut taken = Vec::new();
        let waiting = waiting(self.master)?;
        if waiting == 0 || (!ready(self.slave, PollFlags::OUT) && waiting + 1 < LINE_BYTES_MAX) {
            return Ok(taken);
        }
        let packets = terminal::is_packet_mode(self.master)?;
        for _ in 0..READS_MAX {
            let count = self::waiting(self.master)?;
            if count == 0 {
                break;
            }
            let bytes = read(self.master, count + usize::from(packets))?;
            // In packet mode, the first byte is 0 if data follow.
            match bytes.first() {
                Some(0) if packets => taken.extend(&bytes[1..]),
                Some(_) if packets => {}
                _ => taken.extend(bytes),
            }
        }
        Ok(taken)
    }

    fn put_input(&self, inputs: &[Input], modes: &Modes) -> Result<()> {
        if inputs.is_empty() {
            return Ok(());
        }
        if inputs.iter().all(|input| passes_unchanged(modes, &input.bytes)) {
            return self.write_inputs(inputs, modes);
        }
        let neutral = neutral_for_input(modes);
        terminal::set_modes(self.slave, &neutral)?;
        let outcome = self.write_inputs(inputs, &neutral).and_then(|()| self.await_input(inputs));
        terminal::set_modes(self.slave, modes)?;
        outcome
    }

    fn write_inputs(&self, inputs: &[Input], modes: &Modes) -> Result<()> {
        for input in inputs {
            write(self.master, &input.bytes)?;
            if input.ended {
                write(self.master, &[end_of_file(modes)])?;
            }
        }
        Ok(())
    }

    /// Waits until a worker of the kernel has transferred the bytes. The worker applies the modes that are set during
    /// the transfer.
    fn await_input(&self, inputs: &[Input]) -> Result<()> {
        let wanted: usize = inputs.iter().map(|input| input.bytes.len()).sum();
        let deadline = Deadline::after(TRANSFER_TIMEOUT);
        while (wanted == 0 && !ready(self.slave, PollFlags::IN)) || waiting(self.slave)? < wanted {
            if deadline.has_passed() {
                return Err(Error::new("transfer bytes to a terminal", Errno::SHORT));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    fn put_output(&self, bytes: &[u8], modes: &Modes) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if let Some(source) = source_of_output(modes, bytes) {
            return write(self.slave, &source);
        }
        terminal::set_modes(self.slave, &Modes { output: 0, ..*modes })?;
        let outcome = write(self.slave, bytes);
        terminal::set_modes(self.slave, modes)?;
        outcome
    }
}

/// Reads the input: complete lines in canonical mode, otherwise all bytes.
fn take_input(slave: BorrowedFd<'_>, modes: &Modes) -> Result<Vec<Input>> {
    let mut taken = Vec::new();
    let by_line = modes.local & (ICANON | EXTPROC) == ICANON;
    for _ in 0..READS_MAX {
        if by_line {
            if !ready(slave, PollFlags::IN) {
                break;
            }
            let bytes = read(slave, LINE_BYTES_MAX)?;
            let ended = !bytes.last().is_some_and(|last| ends_line(modes, *last));
            taken.push(Input { bytes, ended });
        } else {
            let count = waiting(slave)?;
            if count == 0 {
                break;
            }
            taken.push(Input { bytes: read(slave, count)?, ended: false });
        }
    }
    Ok(taken)
}

fn ends_line(modes: &Modes, byte: u8) -> bool {
    let ends = [modes.characters[VEOL], modes.characters[VEOL2]];
    byte == b'\n' || (byte != NO_CHARACTER && ends.contains(&byte))
}

fn end_of_file(modes: &Modes) -> u8 {
    match modes.characters[VEOF] {
        NO_CHARACTER => USUAL_EOF,
        character => character,
    }
}

/// Reports whether a terminal in these modes accepts the bytes unchanged and echoes nothing.
fn passes_unchanged(modes: &Modes, bytes: &[u8]) -> bool {
    if modes.local & (ECHO | ECHONL) != 0
        || (modes.local & ICANON != 0 && modes.characters[VEOF] == NO_CHARACTER)
    {
        return false;
    }
    let watches = modes.local & (ISIG | ICANON) != 0 || modes.input & IXON != 0;
    bytes.iter().all(|byte| match byte {
        b'\r' if modes.input & (IGNCR | ICRNL) != 0 => false,
        b'\n' => modes.input & INLCR == 0,
        0x80.. if modes.input & ISTRIP != 0 => false,
        0xff if modes.input & PARMRK != 0 => false,
        b'A'..=b'Z' if modes.input & IUCLC != 0 => false,
        byte => !(watches && is_special(modes, *byte)),
    })
}

fn is_special(modes: &Modes, byte: u8) -> bool {
    let characters = modes.characters.iter().enumerate();
    let mut active = characters.filter(|(index, _)| ![VTIME, VMIN, VEOL, VEOL2].contains(index));
    byte != NO_CHARACTER && active.any(|(_, character)| *character == byte)
}

/// Returns modes that change no byte. Canonical mode and the characters that end a line are kept.
fn neutral_for_input(modes: &Modes) -> Modes {
    let mut neutral = Modes { input: 0, local: modes.local & (ICANON | EXTPROC), ..*modes };
    for (index, character) in neutral.characters.iter_mut().enumerate() {
        if ![VEOF, VTIME, VMIN, VEOL, VEOL2].contains(&index) {
            *character = NO_CHARACTER;
        }
    }
    neutral.characters[VEOF] = end_of_file(modes);
    neutral
}

/// Returns bytes from which output processing produces exactly `bytes`; `None` if no such bytes exist.
fn source_of_output(modes: &Modes, bytes: &[u8]) -> Option<Vec<u8>> {
    if modes.output & OPOST == 0 {
        return Some(bytes.to_vec());
    }
    if modes.output & OTHER_OUTPUT & !(0o100) != 0 {
        return None;
    }
    if modes.output & ONLCR == 0 {
        return Some(bytes.to_vec());
    }
    let mut source = Vec::with_capacity(bytes.len());
    for byte in bytes {
        if *byte == b'\n' && source.pop() != Some(b'\r') {
            return None;
        }
        source.push(*byte);
    }
    Some(source)
}

fn ready(terminal: BorrowedFd<'_>, wanted: PollFlags) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(terminal, wanted)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().contains(wanted)
}

/// Returns the number of bytes that a read would return now. The poll makes the kernel transfer pending bytes.
fn waiting(terminal: BorrowedFd<'_>) -> Result<usize> {
    ready(terminal, PollFlags::IN);
    let count = rustix::io::ioctl_fionread(terminal)
        .map_err(|errno| Error::new("count the bytes in a terminal", errno))?;
    Ok(count as usize)
}

fn read(terminal: BorrowedFd<'_>, length: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let count = match rustix::io::read(terminal, &mut bytes[..]) {
        Ok(count) => count,
        Err(E::AGAIN | E::IO) => 0,
        Err(errno) => return Err(Error::new("read a terminal", errno)),
    };
    bytes.truncate(count);
    Ok(bytes)
}

fn write(terminal: BorrowedFd<'_>, bytes: &[u8]) -> Result<()> {
    let deadline = Deadline::after(TRANSFER_TIMEOUT);
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::write(terminal, &bytes[done..]) {
            Ok(count) => done += count,
            Err(E::AGAIN) if !deadline.has_passed() => std::thread::yield_now(),
            Err(E::INTR) => {}
            Err(errno) => return Err(Error::new("write to a terminal", errno)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::pty::{OpenptFlags, openpt};

    use super::*;

    struct Ends {
        master: OwnedFd,
        slave: OwnedFd,
        own: OwnedFd,
    }

    const O_RDWR: u32 = 2;
    const O_NONBLOCK: u32 = 0o4000;

    impl Ends {
        fn new(change: impl FnOnce(&mut Modes)) -> Self {
            let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
            terminal::set_locked(master.as_fd(), false).unwrap();
            let slave = terminal::open_slave(master.as_fd(), O_RDWR).unwrap();
            let own = terminal::open_slave(master.as_fd(), O_RDWR | O_NONBLOCK).unwrap();
            let mut modes = terminal::modes(slave.as_fd()).unwrap();
            change(&mut modes);
            terminal::set_modes(slave.as_fd(), &modes).unwrap();
            Self { master, slave, own }
        }

        fn pair(&self) -> Pair<'_> {
            Pair { master: self.master.as_fd(), slave: self.own.as_fd() }
        }

        fn modes(&self) -> Modes {
            terminal::modes(self.slave.as_fd()).unwrap()
        }

        fn type_in(&self, bytes: &[u8]) {
            rustix::io::write(&self.master, bytes).unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }

        fn print(&self, bytes: &[u8]) {
            rustix::io::write(&self.slave, bytes).unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }

        fn input(&self) -> Vec<Vec<u8>> {
            let mut lines = Vec::new();
            while ready(self.own.as_fd(), PollFlags::IN) {
                lines.push(read(self.own.as_fd(), 65_536).unwrap());
            }
            lines
        }

        fn output(&self) -> Vec<u8> {
            let mut bytes = Vec::new();
            while ready(self.master.as_fd(), PollFlags::IN) {
                bytes.extend(read(self.master.as_fd(), 65_536).unwrap());
            }
            bytes
        }
    }

    fn raw(modes: &mut Modes) {
        (modes.input, modes.output, modes.local) = (0, 0, 0);
        modes.characters[VMIN] = 3;
    }

    /// Asserts that the unread bytes are unchanged after a copy, and that a new pair has the same unread bytes after
    /// a fill.
    fn check(change: impl Fn(&mut Modes), prepare: impl Fn(&Ends)) -> (Vec<Vec<u8>>, Vec<u8>) {
        let expected = Ends::new(&change);
        prepare(&expected);
        let (input, output) = (expected.input(), expected.output());
        let copied = Ends::new(&change);
        prepare(&copied);
        let before = copied.modes();
        let first = copied.pair().copy(&before).unwrap();
        let queues = copied.pair().copy(&before).unwrap();
        assert_eq!(queues, first);
        assert_eq!(copied.modes(), before);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!((copied.input(), copied.output()), (input.clone(), output.clone()));
        let again = Ends::new(&change);
        again.pair().fill(&queues, &again.modes()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!((again.input(), again.output()), (input.clone(), output.clone()));
        assert_eq!(again.modes(), before);
        (input, output)
    }

    #[test]
    fn raw_bytes_are_copied_in_both_directions() {
        let _guard = testkit::alone();
        let bytes: Vec<u8> = (0..=255).collect();
        let (input, output) = check(raw, |ends| {
            ends.type_in(&bytes);
            ends.print(&bytes);
        });
        assert_eq!((input.concat(), output), (bytes.clone(), bytes));
    }

    #[test]
    fn fewer_bytes_than_the_minimum_of_a_read_are_copied_too() {
        let _guard = testkit::alone();
        let ends = Ends::new(raw);
        ends.type_in(b"ab");
        let queues = ends.pair().copy(&ends.modes()).unwrap();
        assert_eq!(queues.to_slave.len(), 1);
        ends.type_in(b"c");
        assert_eq!(ends.input(), [b"abc"]);
    }

    #[test]
    fn lines_and_ends_of_file_keep_their_boundaries() {
        let _guard = testkit::alone();
        let quiet = |modes: &mut Modes| modes.local &= !(ECHO | ECHONL);
        let (input, _) = check(quiet, |ends| ends.type_in(b"one\ntwo\nthree\x04\x04four\n"));
        assert_eq!(input, [&b"one\n"[..], b"two\n", b"three", b"", b"four\n"].map(<[u8]>::to_vec));
    }

    #[test]
    fn input_is_echoed_once() {
        let _guard = testkit::alone();
        let (input, output) = check(|_| {}, |ends| ends.type_in(b"hello\nq\x16\x03x\n"));
        assert_eq!(input, [&b"hello\n"[..], b"q\x03x\n"].map(<[u8]>::to_vec));
        assert!(output.starts_with(b"hello\r\n"));
    }

    #[test]
    fn processed_output_is_not_processed_twice() {
        let _guard = testkit::alone();
        let (_, output) = check(|_| {}, |ends| ends.print(b"a\tb\nc\n\nd"));
        assert_eq!(output, b"a\tb\r\nc\r\n\r\nd");
        let (_, output) = check(|modes| modes.output |= 0o2, |ends| ends.print(b"up\r\n"));
        assert_eq!(output, b"UP\r\r\n");
    }

    #[test]
    fn a_large_queue_is_copied_whole() {
        let _guard = testkit::alone();
        let bytes = vec![b'x'; 8000];
        let (input, output) = check(raw, |ends| {
            ends.type_in(&bytes);
            ends.print(&bytes);
        });
        assert_eq!((input.concat().len(), output.len()), (8000, 8000));
    }

    #[test]
    fn packets_are_copied_without_their_status() {
        let _guard = testkit::alone();
        let ends = Ends::new(raw);
        terminal::set_packet_mode(ends.master.as_fd(), true).unwrap();
        ends.print(b"text");
        let queues = ends.pair().copy(&ends.modes()).unwrap();
        assert_eq!(queues.to_master, b"text");
        assert_eq!(ends.output(), b"\0text");
    }

    #[test]
    fn stopped_output_is_not_touched() {
        let _guard = testkit::alone();
        let ends = Ends::new(|modes| modes.local &= !ECHO);
        ends.print(b"before");
        ends.type_in(b"\x13");
        let queues = ends.pair().copy(&ends.modes()).unwrap();
        assert_eq!(queues, Queues::default());
        assert_eq!(ends.output(), b"before");
    }
}
