//! Reads and sets the internal state of a TCP connection in *repair mode*, in which the kernel sends no
//! packets.
//!
//! Owns: the TCP_REPAIR family of options, TCP_INFO, and the peek into a send queue in one system call.
//! Invariants: values are passed through unchanged.
//! Does not: decide the order in which the values are read or set.
//!
//! Man page: tcp(7); TCP_REPAIR itself is described in the kernel's `include/uapi/linux/tcp.h`
//! Since: Linux 3.5; TCP_REPAIR_WINDOW since 4.8; leaving repair mode without a probe since 4.19
//! Probe: none; without CAP_NET_ADMIN the options fail with EPERM
//! Fallback: none; a checkpoint is refused, and the error names the established connections

use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode, squeue, types};

use crate::error::{Errno, Error, Result};
use crate::feature::{self, Feature};
use crate::netlink::word;
use crate::socket;
use crate::socket_option::{SocketOption, get, get_int, set, set_int};

const fn option(number: i32, name: &'static str) -> SocketOption {
    SocketOption { level: libc::IPPROTO_TCP, number, name }
}

const MAXIMUM_SEGMENT: SocketOption = option(2, "TCP_MAXSEG");
const INFO: SocketOption = option(11, "TCP_INFO");
const REPAIR: SocketOption = option(19, "TCP_REPAIR");
const REPAIR_QUEUE: SocketOption = option(20, "TCP_REPAIR_QUEUE");
const QUEUE_SEQUENCE: SocketOption = option(21, "TCP_QUEUE_SEQ");
const REPAIR_OPTIONS: SocketOption = option(22, "TCP_REPAIR_OPTIONS");
const TIMESTAMP: SocketOption = option(24, "TCP_TIMESTAMP");
const REPAIR_WINDOW: SocketOption = option(29, "TCP_REPAIR_WINDOW");

/// A way to enter or leave repair mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repair {
    /// Enters repair mode. In repair mode, calls change the state of the socket, and send no packets.
    On = 1,
    /// Leaves repair mode, and asks the peer for its window with a probe packet.
    OffWithProbe = 0,
    /// Leaves repair mode without sending a packet.
    Off = -1,
}

/// A queue of a connection in repair mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Queue {
    /// No queue.
    Neither = 0,
    /// Data that was received and not yet read.
    Receive = 1,
    /// Data that was written and not yet acknowledged.
    Send = 2,
}

/// The state of a TCP socket, with the kernel's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are those of RFC 9293")]
pub enum State {
    Established = 1,
    SynSent = 2,
    SynReceived = 3,
    FinWait1 = 4,
    FinWait2 = 5,
    TimeWait = 6,
    Close = 7,
    CloseWait = 8,
    LastAck = 9,
    Listen = 10,
    Closing = 11,
}

impl State {
    /// Returns the state with this kernel number; `None` for an unknown number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        [
            Self::Established,
            Self::SynSent,
            Self::SynReceived,
            Self::FinWait1,
            Self::FinWait2,
            Self::TimeWait,
            Self::Close,
            Self::CloseWait,
            Self::LastAck,
            Self::Listen,
            Self::Closing,
        ]
        .into_iter()
        .find(|state| *state as u8 == number)
    }
}

/// The windows of a connection, in the layout of TCP_REPAIR_WINDOW.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Window {
    /// Sequence number of the packet that last changed the send window.
    pub send_update: u32,
    /// Send window in bytes, which the peer offers.
    pub send: u32,
    /// Largest send window in bytes that the peer ever offered.
    pub send_max: u32,
    /// Receive window in bytes, which is offered to the peer.
    pub receive: u32,
    /// Receive sequence number at which the receive window was offered.
    pub receive_update: u32,
}

const _: () = assert!(size_of::<Window>() == 20);
const _: () = assert!(offset_of!(Window, receive_update) == 16);

const WINDOW_BYTES: usize = size_of::<Window>();

impl Window {
    fn to_bytes(self) -> [u8; WINDOW_BYTES] {
        let words = [self.send_update, self.send, self.send_max, self.receive, self.receive_update];
        let mut bytes = [0; WINDOW_BYTES];
        for (slot, word) in bytes.chunks_exact_mut(4).zip(words) {
            slot.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: [u8; WINDOW_BYTES]) -> Self {
        let [send_update, send, send_max, receive, receive_update] =
            std::array::from_fn(|index| word(&bytes, index * 4));
        Self { send_update, send, send_max, receive, receive_update }
    }
}

/// The fields of TCP_INFO that this program uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Info {
    /// Number of the state.
    pub state: u8,
    /// Both sides send timestamps.
    pub timestamps: bool,
    /// Both sides support selective acknowledgement.
    pub selective_acknowledgement: bool,
    /// Both sides use window scaling.
    pub scaling: bool,
    /// Shift count of the peer's window.
    pub send_scale: u8,
    /// Shift count of our window.
    pub receive_scale: u8,
    /// Number of bytes of a full segment without its options.
    pub segment: u32,
    /// Number of segments that are not acknowledged. For a listener: the connections that wait to be accepted.
    pub unacknowledged: u32,
    /// Backlog of a listener: the maximum number of waiting connections.
    pub backlog: u32,
    /// Number of bytes that the peer has acknowledged. A SYN may count as one byte.
    pub acknowledged_bytes: u64,
    /// Number of bytes that have arrived in order. The FIN of the peer counts as one byte.
    pub received_bytes: u64,
    /// Number of segments that were sent, and of segments that have arrived. They wrap around.
    pub segments: (u32, u32),
    /// Send window and receive window in bytes. `None` before Linux 6.2.
    pub windows: Option<(u32, u32)>,
}

/// Number of bytes of `struct tcp_info` that are read.
const INFO_BYTES: usize = 236;

/// Reads TCP_INFO of a socket.
pub fn info(socket: BorrowedFd<'_>) -> Result<Info> {
    const STATE: usize = 0;
    const OPTIONS: usize = 5;
    const SCALES: usize = 6;
    const SEGMENT: usize = 16;
    const UNACKNOWLEDGED: usize = 24;
    const BACKLOG: usize = 28;
    const ACKNOWLEDGED_BYTES: usize = 120;
    const RECEIVED_BYTES: usize = 128;
    const SENT_SEGMENTS: usize = 136;
    const ARRIVED_SEGMENTS: usize = 140;
    const SEND_WINDOW: usize = 228;
    const RECEIVE_WINDOW: usize = 232;
    let mut bytes = [0; INFO_BYTES];
    let length = get(socket, INFO, &mut bytes)?;
    let word = |at: usize| word(&bytes, at);
    // On this architecture, the low half of an integer is stored first.
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    Ok(Info {
        state: bytes[STATE],
        timestamps: bytes[OPTIONS] & 1 != 0,
        selective_acknowledgement: bytes[OPTIONS] & 2 != 0,
        scaling: bytes[OPTIONS] & 4 != 0,
        send_scale: bytes[SCALES] & 0xf,
        receive_scale: bytes[SCALES] >> 4,
        segment: word(SEGMENT),
        unacknowledged: word(UNACKNOWLEDGED),
        backlog: word(BACKLOG),
        acknowledged_bytes: long(ACKNOWLEDGED_BYTES),
        received_bytes: long(RECEIVED_BYTES),
        segments: (word(SENT_SEGMENTS), word(ARRIVED_SEGMENTS)),
        windows: (length == INFO_BYTES).then(|| (word(SEND_WINDOW), word(RECEIVE_WINDOW))),
    })
}

/// Enters or leaves repair mode. Leaving repair mode clears SO_REUSEADDR.
pub fn set_repair(socket: BorrowedFd<'_>, repair: Repair) -> Result<()> {
    set_int(socket, REPAIR, repair as i32)
}

const REUSE_ADDRESS: SocketOption =
    SocketOption { level: libc::SOL_SOCKET, number: libc::SO_REUSEADDR, name: "SO_REUSEADDR" };

/// Reads live connections in repair mode, without a moment in which this process could be killed: the connection enters repair
/// mode, is read, and leaves repair mode in one io_uring_enter(2), which SIGKILL does not interrupt. With single calls, a killed
/// process can leave a connection in repair mode, and the next recv(2) of the program fails with EPERM.
#[derive(Default)]
pub struct LiveReader(Ring);

#[derive(Default)]
enum Ring {
    #[default]
    New,
    Ready(IoUring),
    /// The kernel has refused.
    Unsupported,
}

/// Maximum number of requests that are executed at once.
const REQUESTS_MAX: usize = 6;

impl std::fmt::Debug for LiveReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Ring::New => "LiveReader(new)",
            Ring::Ready(_) => "LiveReader(ready)",
            Ring::Unsupported => "LiveReader(unsupported)",
        })
    }
}

impl LiveReader {
    /// Peeks into the send queue of a connection: copies the bytes behind the first `skip` bytes into `bytes`. Returns the
    /// number of bytes in the queue, including the skipped bytes, or `None` if this kernel cannot do that. `reuse` is the
    /// present value of SO_REUSEADDR.
    ///
    /// # Errors
    ///
    /// The kernel cannot peek. The connection has left repair mode.
    pub fn peek_send_queue(
        &mut self,
        socket: BorrowedFd<'_>,
        reuse: i32,
        skip: usize,
        bytes: &mut [u8],
    ) -> Result<Option<usize>> {
        let fd = types::Fd(socket.as_raw_fd());
        let peeked = socket::with_peek_header(skip, bytes, |header| {
            let peek = opcode::RecvMsg::new(fd, &raw mut *header).flags(socket::PEEK as u32).build();
            // SAFETY: the header is valid until this call returns.
            unsafe { self.in_repair_mode(socket, reuse, Queue::Send, Some(peek)) }
        })?;
        match peeked {
            Some(count) if count < 0 && -count != libc::EAGAIN => {
                Err(Error::new("peek into the send queue of a TCP connection", Errno(-count)))
            }
            peeked => Ok(peeked.map(|count| count.max(0) as usize)),
        }
    }

    /// Returns the sequence numbers after the end of the receive queue and of the send queue of a connection, or `None` if
    /// this kernel cannot do that.
    ///
    /// # Errors
    ///
    /// The kernel does not tell the numbers. The connection has left repair mode.
    pub fn sequences(&mut self, socket: BorrowedFd<'_>, reuse: i32) -> Result<Option<(u32, u32)>> {
        let mut of = |queue| {
            // The kernel keeps the choice of the queue, and tells the number also outside of repair mode.
            // SAFETY: no further request.
            let chosen = unsafe { self.in_repair_mode(socket, reuse, queue, None) }?;
            chosen.map(|_| sequence(socket)).transpose()
        };
        Ok(of(Queue::Receive)?.zip(of(Queue::Send)?))
    }

    /// Sets a connection to repair mode, chooses a queue, executes a further request, and leaves repair mode, all at once.
    /// Returns the result of the further request, or `None` if this kernel cannot do that.
    ///
    /// # Safety
    ///
    /// What the further request refers to is valid during this call.
    unsafe fn in_repair_mode(
        &mut self,
        socket: BorrowedFd<'_>,
        reuse: i32,
        queue: Queue,
        further: Option<squeue::Entry>,
    ) -> Result<Option<i32>> {
        if matches!(self.0, Ring::New) && feature::enabled(Feature::IoUring) {
            let ring = IoUring::new(REQUESTS_MAX.next_power_of_two() as u32);
            self.0 = ring.map_or(Ring::Unsupported, Ring::Ready);
        }
        let Ring::Ready(ring) = &mut self.0 else { return Ok(None) };
        let fd = types::Fd(socket.as_raw_fd());
        let values = [Repair::On as i32, queue as i32, Repair::Off as i32, i32::from(reuse != 0)];
        let set = |option: SocketOption, value: &i32| {
            let value = (&raw const *value).cast();
            let length = size_of::<i32>() as u32;
            opcode::SetSockOpt::new(fd, option.level as u32, option.number as u32, value, length).build()
        };
        let enter = [set(REPAIR, &values[0]), set(REPAIR_QUEUE, &values[1])];
        let leave = [set(REPAIR, &values[2]), set(REUSE_ADDRESS, &values[3])];
        let place = further.as_ref().map(|_| enter.len());
        let entries: Vec<_> = enter.into_iter().chain(further).chain(leave).collect();
        // SAFETY: the requests refer to `values`, and to what the caller keeps valid.
        let outcome = unsafe { execute(ring, &entries) };
        match outcome {
            Ok(results)
                if !results.iter().enumerate().any(|(at, result)| *result < 0 && Some(at) != place) =>
            {
                Ok(Some(place.map_or(0, |place| results[place])))
            }
            _ => {
                self.0 = Ring::Unsupported;
                // Only some of the requests may have been executed.
                set_repair(socket, Repair::Off)?;
                set_int(socket, REUSE_ADDRESS, i32::from(reuse != 0))?;
                Ok(None)
            }
        }
    }
}

/// Executes requests in their order, and returns their results.
///
/// # Safety
///
/// What the requests refer to is valid during this call.
unsafe fn execute(
    ring: &mut IoUring,
    entries: &[squeue::Entry],
) -> std::result::Result<[i32; REQUESTS_MAX], Errno> {
    for (place, entry) in entries.iter().enumerate() {
        let entry = entry.clone().user_data(place as u64);
        // SAFETY: the caller keeps valid what the request refers to, and this function returns after all results.
        unsafe { ring.submission().push(&entry) }.map_err(|_| Errno(libc::EBUSY))?;
    }
    let (mut results, mut count) = ([0; REQUESTS_MAX], 0);
    while count < entries.len() {
        match ring.submit_and_wait(entries.len() - count) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Errno(error.raw_os_error().unwrap_or(libc::EIO))),
            Ok(_) => {}
        }
        for completion in ring.completion() {
            results[completion.user_data() as usize] = completion.result();
            count += 1;
        }
    }
    Ok(results)
}

/// Chooses the queue to which the following calls refer: reads and changes of sequence numbers, peeks, and
/// writes.
pub fn choose_queue(socket: BorrowedFd<'_>, queue: Queue) -> Result<()> {
    set_int(socket, REPAIR_QUEUE, queue as i32)
}

/// Returns the sequence number after the end of the chosen queue.
pub fn sequence(socket: BorrowedFd<'_>) -> Result<u32> {
    get_int(socket, QUEUE_SEQUENCE).map(|value| value as u32)
}

/// Sets the sequence number of the chosen queue, which must be empty.
pub fn set_sequence(socket: BorrowedFd<'_>, sequence: u32) -> Result<()> {
    set_int(socket, QUEUE_SEQUENCE, sequence as i32)
}

/// Returns the windows of a connection.
pub fn window(socket: BorrowedFd<'_>) -> Result<Window> {
    let mut bytes = [0; WINDOW_BYTES];
    get(socket, REPAIR_WINDOW, &mut bytes)?;
    Ok(Window::from_bytes(bytes))
}

/// Sets the windows of a connection.
pub fn set_window(socket: BorrowedFd<'_>, window: Window) -> Result<()> {
    set(socket, REPAIR_WINDOW, &window.to_bytes())
}

/// Returns the timestamp clock of a connection, in the kernel's encoding.
pub fn timestamp(socket: BorrowedFd<'_>) -> Result<u32> {
    get_int(socket, TIMESTAMP).map(|value| value as u32)
}

/// Sets the timestamp clock of a connection.
pub fn set_timestamp(socket: BorrowedFd<'_>, timestamp: u32) -> Result<()> {
    set_int(socket, TIMESTAMP, timestamp as i32)
}

/// Returns the agreed maximum segment size in bytes. The socket must be in repair mode.
pub fn segment_limit(socket: BorrowedFd<'_>) -> Result<u32> {
    get_int(socket, MAXIMUM_SEGMENT).map(|value| value as u32)
}

/// The options that both sides agreed on when the connection was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreement {
    /// Maximum segment size in bytes.
    pub segment_limit: u32,
    /// Shift counts of the peer's window and of our window; `None` without window scaling.
    pub scales: Option<(u8, u8)>,
    /// Both sides use selective acknowledgement.
    pub selective_acknowledgement: bool,
    /// Both sides use timestamps.
    pub timestamps: bool,
}

/// Sets the options that both sides agreed on.
pub fn set_agreement(socket: BorrowedFd<'_>, agreement: Agreement) -> Result<()> {
    const SEGMENT: u32 = 2;
    const SCALES: u32 = 3;
    const SELECTIVE: u32 = 4;
    const TIMESTAMPS: u32 = 8;
    let mut words = vec![SEGMENT, agreement.segment_limit];
    if let Some((send, receive)) = agreement.scales {
        words.extend([SCALES, u32::from(send) | u32::from(receive) << 16]);
    }
    if agreement.selective_acknowledgement {
        words.extend([SELECTIVE, 0]);
    }
    if agreement.timestamps {
        words.extend([TIMESTAMPS, 0]);
    }
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    set(socket, REPAIR_OPTIONS, &bytes)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_listener_reports_its_backlog() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 17).unwrap();
        let info = info(listener.as_fd()).unwrap();
        assert_eq!(State::from_number(info.state), Some(State::Listen));
        assert_eq!((info.unacknowledged, info.backlog), (0, 17));
    }

    #[test]
    fn windows_survive_their_encoding() {
        let window = Window { send_update: 1, send: 2, send_max: 3, receive: 4, receive_update: u32::MAX };
        assert_eq!(Window::from_bytes(window.to_bytes()), window);
    }
}
