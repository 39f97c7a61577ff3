//! Tests with a chain of components that call each other. The order of starts must not matter. Calls to a killed
//! component must wait until the component is back.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Child;

use model::Pid;
use rustix::process::Signal;
use serde_json::Value;
use testkit::ProcessId;

use crate::common::{LIMIT, Lab, compiled, supported, until, wait};

/// The components ("links") in the order in which a request visits them.
const LINKS: [&str; 4] = ["A", "B", "C", "D"];
/// Delay of each link in milliseconds before it calls the next link and before it listens. The last link is the
/// slowest.
const DELAYS_MS: [u64; 4] = [0, 20, 40, 60];
/// Names of the components, in the order of their starts.
const NAMES: [&str; 4] = ["p", "q", "r", "s"];

/// The chain, its guardian (the supervising process), and the data to find a link.
struct Chain {
    lab: Lab,
    guardian: Child,
    port: u16,
    /// The names of the components that are the links A, B, C and D.
    names: [&'static str; 4],
}

impl Chain {
    /// Starts the chain. `order` contains the position of each link in the order of starts. No component declares a
    /// dependency (`needs`).
    fn up(order: [usize; 4]) -> Self {
        let (lab, ports, names) =
            (Lab::new(), [(); 4].map(|()| testkit::free_port()), order.map(|place| NAMES[place]));
        let mut links: Vec<usize> = (0..LINKS.len()).collect();
        links.sort_by_key(|link| order[*link]);
        let (program, file) = (program().display(), lab.path("chain"));
        let mut text = "[system]\nname = \"chain\"\n".to_owned();
        for link in links {
            let (own, next) = (ports[link], ports.get(link + 1).copied().unwrap_or(0));
            write!(
                text,
                "[component.{}]\ncommand = [\"{program}\", \"{}\", \"{}\", \"{own}\", \"{next}\", \"{}\"]\n\
                 ready = {{ tcp = \"127.0.0.1:{own}\" }}\n",
                names[link],
                file.display(),
                LINKS[link],
                DELAYS_MS[link],
            )
            .unwrap();
        }
        std::fs::write(lab.path("system.toml"), text).unwrap();
        let guardian = lab.undying(["up", "system.toml"]).spawn().unwrap();
        let chain = Self { lab, guardian, port: ports[0], names };
        for name in NAMES {
            chain.await_ready(name, 1);
        }
        chain
    }

    fn status(&self, name: &str) -> Value {
        self.lab.json(&["status", name])[0].clone()
    }

    fn await_ready(&self, name: &str, incarnation: u64) {
        let found = testkit::within_limit(|| {
            let status = self.status(name);
            let is_ready = status["component"]["state"] == "ready";
            (is_ready && status["incarnation"].as_u64()? == incarnation).then_some(())
        });
        assert!(found.is_some(), "{name} is not ready: {:?}\n{}", self.lines(), self.lab.told());
    }

    /// Returns the lines that the links have written.
    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.lab.path("chain")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Sends a request to the first link.
    fn ask(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        writeln!(stream, "{request}").unwrap();
        stream
    }

    fn down(mut self) {
        let said = self.lab.say(["down"]);
        assert_eq!(said.code, Some(0), "{said:?}\n{}", self.lab.told());
        assert_eq!(wait(&mut self.guardian).code(), Some(0));
    }
}

/// Returns the path of the link program.
fn program() -> &'static Path {
    compiled("link")
}

/// Returns all permutations of the four positions.
fn orders() -> Vec<[usize; 4]> {
    let all = (0..256).map(|number| [number / 64, number / 16 % 4, number / 4 % 4, number % 4]);
    all.filter(|order| (0..4).all(|place| order.contains(&place))).collect()
}

/// Kills the third link while the last link handles the request.
fn survives_a_death(order: [usize; 4]) {
    let chain = Chain::up(order);
    let mut client = chain.ask("one");
    until("the last link", || (chain.lines() == ["asked one"]).then_some(()));
    let third = chain.names[2];
    let pid = Pid(chain.status(third)["pid"].as_i64().unwrap() as i32);
    ProcessId::of(pid).unwrap().signal(Signal::KILL).unwrap();
    chain.await_ready(third, 2);
    std::fs::write(chain.lab.path("chain.go"), "").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "one D C B A\n", "{order:?}: {:?}\n{}", chain.lines(), chain.lab.told());
    // The link before the killed link has sent its request again. No call was refused.
    assert_eq!(chain.lines(), ["asked one", "asked one"], "{order:?}\n{}", chain.lab.told());
    let incarnations = chain.names.map(|name| chain.status(name)["incarnation"].as_u64().unwrap());
    assert_eq!(incarnations, [1, 1, 2, 1], "{order:?}\n{}", chain.lab.told());
    chain.down();
}

#[test]
fn a_request_through_a_chain_is_answered_once_though_a_link_dies_whatever_the_order_of_starts() {
    if !supported() {
        return;
    }
    let orders = orders();
    assert_eq!(orders.len(), 24);
    orders.into_iter().for_each(survives_a_death);
}
