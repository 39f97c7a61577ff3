//! Tests: live connections of this process are read.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use sys::socket_option::{self, SocketOption};
use sys::tcp_repair::{self, LiveReader, Queue, Repair, State as TcpState};

use super::super::super::tcp_stream::Streams;
use super::super::super::test_support::alone;
use super::super::tests::{may, pair};
use super::super::{connection, live, state};

#[test]
fn queues_of_a_connection_are_read_piece_by_piece_while_packets_arrive() {
    let _alone = alone();
    if !may() {
        return;
    }
    let (client, server) = pair("127.0.0.1:0");
    server.set_nonblocking(true).unwrap();
    let (mut streams, mut reader) = (Streams::default(), LiveReader::default());
    let (mut sent, mut read) = (0_usize, 0_usize);
    let bytes: Vec<u8> = (0..16 << 20).map(|n: u32| (n * 31 % 251) as u8).collect();
    let mut from_client = Vec::new();
    for round in 0..40 {
        while let Ok(count) = (&server).write(&bytes[sent..sent + 70_000]) {
            sent += count;
        }
        from_client.push(round);
        (&client).write_all(&[round]).unwrap();
        let unread = || sys::socket::readable_bytes(server.as_fd()).unwrap();
        while unread() != from_client.len() {
            std::thread::yield_now();
        }
        // The client reads during every second capture.
        let drain = || {
            let wanted = if round % 2 == 0 { 0 } else { 300_000 };
            let mut buffer = vec![0; wanted];
            (&client).read_exact(&mut buffer).unwrap();
            assert!(buffer == bytes[read..read + wanted], "round {round}");
            wanted
        };
        let (captured, drained) = std::thread::scope(|scope| {
            let drained = scope.spawn(drain);
            let captured = match round % 3 {
                0 => connection::read_in_repair_mode(server.as_fd(), &mut streams),
                _ => live::read_moving(server.as_fd(), &mut streams, &mut reader),
            };
            let captured = captured.unwrap();
            (captured, drained.join().unwrap())
        });
        let (connection, queues) = captured;
        assert_eq!(flat(&queues[0]), from_client);
        let written = flat(&queues[1]);
        assert!(written == bytes[sent - written.len()..sent], "round {round}: {} bytes", written.len());
        assert!(connection.unsent as usize <= written.len());
        read += drained;
        // All bytes that the client has not received are in the queue.
        assert!(sent - written.len() <= read + sys::socket::readable_bytes(client.as_fd()).unwrap());
    }
    assert!(sent > 3_000_000, "{sent}");
}

/// Makes it visible whether the socket is set to repair mode by single calls: this resets the chosen queue. Outside of repair
/// mode, the choice has no other effect.
fn choose(socket: BorrowedFd<'_>) {
    tcp_repair::set_repair(socket, Repair::On).unwrap();
    tcp_repair::choose_queue(socket, Queue::Send).unwrap();
    tcp_repair::set_repair(socket, Repair::Off).unwrap();
}

fn was_in_repair_mode(socket: BorrowedFd<'_>) -> bool {
    tcp_repair::sequence(socket).is_err()
}

/// If this process were killed while a connection is in repair mode, the program could not use the connection any more.
#[test]
fn a_connection_without_changes_in_its_send_queue_is_read_without_repair_mode() {
    let _alone = alone();
    if !may() {
        return;
    }
    let (client, server) = pair("127.0.0.1:0");
    let socket = server.as_fd();
    let (mut streams, mut reader) = (Streams::default(), LiveReader::default());
    let mut read = || {
        choose(socket);
        let (_, queues) = live::read_moving(socket, &mut streams, &mut reader).unwrap();
        (was_in_repair_mode(socket), flat(&queues[0]), flat(&queues[1]))
    };
    let (is_old, received, written) = read();
    if is_old {
        return println!("unsupported: reading a TCP connection without repair mode");
    }
    assert_eq!((received, written), (vec![], vec![]));
    assert_eq!(read(), (false, vec![], vec![]));
    (&client).write_all(b"asks").unwrap();
    while sys::socket::readable_bytes(socket).unwrap() < 4 {
        std::thread::yield_now();
    }
    assert_eq!(read(), (false, b"asks".to_vec(), vec![]));
    assert_eq!((&server).read(&mut [0; 2]).unwrap(), 2);
    assert_eq!(read(), (false, b"ks".to_vec(), vec![]));
    // The client acknowledges nothing.
    socket_option::attach_filter(client.as_fd(), &socket_option::FILTER_DROPS_ALL).unwrap();
    (&server).write_all(b"answers").unwrap();
    assert_eq!(read().2, b"answers");
    assert_eq!(read(), (false, b"ks".to_vec(), b"answers".to_vec()));
}

const PEEKER: &str = "UNDYING_TEST_PEEKER";

/// The process of the next test: peeks into the send queue of its standard input until it is killed.
#[test]
fn peeks_until_it_is_killed() {
    if std::env::var_os(PEEKER).is_none() {
        return;
    }
    let (stdin, mut bytes, mut reader) = (std::io::stdin(), [0; 7], LiveReader::default());
    loop {
        let peeked = reader.peek_send_queue(stdin.as_fd(), 1, 0, &mut bytes).unwrap();
        let Some(count) = peeked else { std::process::exit(1) };
        assert_eq!((count, &bytes), (7, b"answers"));
    }
}

#[test]
fn a_killed_process_leaves_no_connection_in_repair_mode() {
    const KILLS: u64 = 200;
    const REPAIR: SocketOption = SocketOption { level: 6, number: 19, name: "TCP_REPAIR" };
    let _alone = alone();
    if !may() {
        return;
    }
    let mut random = testkit::seeded("a_killed_process_leaves_no_connection_in_repair_mode");
    let (client, server) = pair("127.0.0.1:0");
    rustix::net::sockopt::set_socket_reuseaddr(&server, true).unwrap();
    socket_option::attach_filter(client.as_fd(), &socket_option::FILTER_DROPS_ALL).unwrap();
    (&server).write_all(b"answers").unwrap();
    for kill in 0..KILLS {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "fd::tcp::live::tests::peeks_until_it_is_killed"]).env(PEEKER, "1");
        let silent = std::process::Stdio::null;
        command.stdin(OwnedFd::from(server.try_clone().unwrap())).stdout(silent()).stderr(silent());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(5) + testkit::moment(&mut random, Duration::from_millis(5)));
        if child.try_wait().unwrap().is_some() {
            return println!("unsupported: options of sockets in io_uring");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let repair = socket_option::get_int(server.as_fd(), REPAIR).unwrap();
        assert_eq!(repair, 0, "after kill {kill}");
        assert!(rustix::net::sockopt::socket_reuseaddr(&server).unwrap(), "after kill {kill}");
    }
}

#[test]
fn a_connection_within_the_program_is_read_without_repair_mode() {
    let _alone = alone();
    if !may() {
        return;
    }
    let (client, server) = pair("127.0.0.1:0");
    let socket = server.as_fd();
    let (mut streams, mut reader) = (Streams::default(), LiveReader::default());
    let mut read = || {
        choose(socket);
        let connection = live::read_inside(socket, &mut streams, &mut reader).unwrap();
        (was_in_repair_mode(socket), connection)
    };
    let (is_old, mut last) = read();
    if is_old {
        return println!("unsupported: reading a TCP connection without repair mode");
    }
    for round in 1..=20 {
        (&client).write_all(b"asks").unwrap();
        while sys::socket::readable_bytes(socket).unwrap() < 4 * round {
            std::thread::yield_now();
        }
        (&server).write_all(b"answers").unwrap();
        let (is_old, connection) = read();
        assert!(!is_old);
        assert_eq!(connection.received, b"asks".repeat(round));
        assert!(b"answers".repeat(round).ends_with(&connection.written), "{:?}", connection.written);
        assert_eq!(connection.receive_end, last.receive_end.wrapping_add(4));
        assert_eq!(connection.send_end, last.send_end.wrapping_add(7));
        last = connection;
    }
}

/// The state that is computed without repair mode must be the state that repair mode shows.
#[test]
fn a_computed_state_is_the_state_of_the_connection() {
    let _alone = alone();
    if !may() {
        return;
    }
    let (client, server) = pair("127.0.0.1:0");
    client.set_nonblocking(true).unwrap();
    server.set_nonblocking(true).unwrap();
    let socket = server.as_fd();
    let seed = testkit::seed("a_computed_state_is_the_state_of_the_connection");
    let mut random = seed | 1;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) as usize % below
    };
    let (mut streams, mut reader) = (Streams::default(), LiveReader::default());
    let mut buffer = vec![7; 300_000];
    let (mut compared, mut computed) = (0, 0);
    for round in 0..200 {
        match next(if round < 150 { 4 } else { 6 }) {
            0 => drop((&client).write(&buffer[..next(60_000)])),
            1 => drop((&server).write(&buffer[..next(200_000)])),
            2 => drop((&client).read(&mut buffer[..])),
            3 => drop((&server).read(&mut buffer[..])),
            4 => client.shutdown(Shutdown::Write).unwrap(),
            _ => server.shutdown(Shutdown::Write).unwrap(),
        }
        if next(3) == 0 {
            std::thread::sleep(Duration::from_millis(next(50) as u64));
        }
        if tcp_repair::info(socket).unwrap().state == TcpState::Close as u8 {
            break;
        }
        choose(socket);
        let segments = tcp_repair::info(socket).unwrap().segments;
        let (found, queues) = live::read_moving(socket, &mut streams, &mut reader).unwrap();
        computed += usize::from(!was_in_repair_mode(socket));
        if next(4) == 0 {
            // The next read is the first one.
            streams = Streams::default();
        }
        let (exact, whole) = connection::read_in_repair_mode(socket, &mut Streams::default()).unwrap();
        if tcp_repair::info(socket).unwrap().segments != segments {
            continue;
        }
        compared += 1;
        let bytes = |queues: &[connection::QueueParts]| queues.iter().map(flat).collect::<Vec<_>>();
        assert!(bytes(&queues) == bytes(&whole), "round {round}, seed {seed}");
        // A window counts as changed with the newest byte, and may so be larger than it is.
        let reach = |one: &state::Connection| one.window_receive_update.wrapping_add(one.window_receive);
        assert!(
            reach(&found).wrapping_sub(reach(&exact)) < 1 << 30,
            "round {round}, seed {seed}: {found:?} {exact:?}"
        );
        // In repair mode, a packet can make the kernel count unsent bytes as sent.
        assert!(found.unsent >= exact.unsent, "round {round}, seed {seed}: {found:?} {exact:?}");
        assert!(
            (1000..=exact.segment_limit).contains(&found.segment_limit),
            "round {round}, seed {seed}: {found:?}"
        );
        let found = state::Connection {
            unsent: exact.unsent,
            segment_limit: exact.segment_limit,
            timestamp: exact.timestamp,
            window_send_update: exact.window_send_update,
            window_send_max: exact.window_send_max,
            window_receive: exact.window_receive,
            window_receive_update: exact.window_receive_update,
            ..found
        };
        assert_eq!(found, exact, "round {round}, seed {seed}");
    }
    println!("{compared} states compared, {computed} reads without single calls in repair mode");
    assert!(compared > 50, "{compared}");
}

fn flat(queue: &connection::QueueParts) -> Vec<u8> {
    queue.parts.iter().flat_map(|part| part.bytes().to_vec()).collect()
}
