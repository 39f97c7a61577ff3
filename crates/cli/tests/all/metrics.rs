//! Tests of `undying metrics`, printed for an operator and served to Prometheus.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;

use crate::common::{Guarded, Lab, supported, until};

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: lab\r\n\r\n";

/// Returns the value of a metric of the subject (protected process tree) `job`.
fn value(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(name) && line.contains("subject=\"job\""))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

fn whole(mut from: impl Read + Write) -> String {
    from.write_all(REQUEST).unwrap();
    let mut answer = String::new();
    from.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn metrics_of_a_subject_are_printed_and_served() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let guarded = Guarded::run(&lab, &[], "until [ -e stop ]; do sleep 0.02; done");
    guarded.await_checkpoints(3);
    guarded.kill();
    let printed = lab.say(["metrics"]);
    assert_eq!(printed.code, Some(0), "{printed:?}");
    assert!(printed.stdout.ends_with("# EOF\n"), "{}", printed.stdout);
    assert!(value(&printed.stdout, "undying_checkpoints_total").unwrap() >= 3.0, "{}", printed.stdout);
    assert_eq!(value(&printed.stdout, "undying_restarts_total"), Some(1.0));
    assert_eq!(value(&printed.stdout, "undying_incarnation"), Some(2.0));
    assert_eq!(value(&printed.stdout, "undying_subject_state"), Some(1.0));
    assert!(value(&printed.stdout, "undying_pause_seconds").unwrap() > 0.0);
    assert_eq!(value(&printed.stdout, "undying_checkpoints_inexact_total"), Some(0.0));
    assert_eq!(value(&printed.stdout, "undying_late_releases_total"), Some(0.0));

    let path = lab.path("metrics.sock");
    let mut server = lab.undying(["metrics", "--listen", path.to_str().unwrap()]).spawn().unwrap();
    for _ in 0..2 {
        let answer = whole(until("the server", || UnixStream::connect(&path).ok()));
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert_eq!(value(&answer, "undying_restarts_total"), Some(1.0), "{answer}");
    }
    // A second server cannot use the path of a running server. A server that starts after the end of the first server
    // can use the path.
    let second = lab.say(["metrics", "--listen", path.to_str().unwrap()]);
    assert_eq!(second.code, Some(125), "{second:?}");
    assert!(second.stderr.contains("cannot listen at"), "{second:?}");
    server.kill().unwrap();
    server.wait().unwrap();
    let mut server = lab.undying(["metrics", "--listen", path.to_str().unwrap()]).spawn().unwrap();
    let answered = until("the next server", || UnixStream::connect(&path).ok());
    assert!(whole(answered).contains("undying_incarnation"));
    server.kill().unwrap();
    server.wait().unwrap();

    let port = SocketAddr::from(([127, 0, 0, 1], testkit::free_port()));
    let mut server = lab.undying(["metrics", "--listen", &port.to_string()]).spawn().unwrap();
    assert!(whole(until("the server", || TcpStream::connect(port).ok())).contains("undying_incarnation"));
    server.kill().unwrap();
    server.wait().unwrap();
    let refused = lab.say(["metrics", "--listen", "0.0.0.0:9185"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("loopback"), "{refused:?}");
    assert_eq!(guarded.end(), 0);
}
