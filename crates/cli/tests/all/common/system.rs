//! A system (several components) under `undying up`, for tests.

use std::io::Read;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use model::Pid;
use serde_json::Value;
use testkit::ProcessId;

use super::{Lab, Said, compiled, until, wait};

/// A guarded system. Drop ends the system.
pub(crate) struct System {
    pub(crate) lab: Lab,
    pub(crate) guardian: Child,
}

impl System {
    /// Writes the system file, replaces `PROGRAM` and `FOLDER` in it, and starts the system.
    pub(crate) fn up(text: &str) -> Self {
        Self::up_with(text, |_, _| {})
    }

    pub(crate) fn up_with(text: &str, prepare: impl FnOnce(&Lab, &mut Command)) -> Self {
        let lab = Lab::new();
        write_file(&lab, text);
        let mut command = lab.undying(["up", "system.toml"]);
        prepare(&lab, &mut command);
        let guardian = command.spawn().unwrap();
        Self { lab, guardian }
    }

    /// Replaces the file of a running system.
    pub(crate) fn rewrite(&self, text: &str) {
        write_file(&self.lab, text);
    }

    pub(crate) fn status(&self, name: &str) -> Value {
        let said = self.lab.say(["status", name, "--json"]);
        serde_json::from_str::<Value>(&said.stdout).map(|status| status[0].clone()).unwrap_or_default()
    }

    pub(crate) fn state(&self, name: &str) -> String {
        self.status(name)["component"]["state"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn await_state(&self, name: &str, wanted: &str) {
        let mut last = String::new();
        let found = testkit::within_limit(|| {
            last = self.state(name);
            (last == wanted).then_some(())
        });
        assert!(found.is_some(), "{name} is {last} and not {wanted}:\n{}", self.lab.told());
    }

    pub(crate) fn pid(&self, name: &str) -> ProcessId {
        ProcessId::of(Pid(self.status(name)["pid"].as_i64().unwrap() as i32)).unwrap()
    }

    pub(crate) fn incarnation(&self, name: &str) -> u64 {
        self.status(name)["incarnation"].as_u64().unwrap_or(0)
    }

    pub(crate) fn await_incarnation(&self, name: &str, number: u64) {
        until("the next incarnation", || (self.incarnation(name) >= number).then_some(()));
        self.await_state(name, "ready");
    }

    pub(crate) fn told(&self, words: &str) -> bool {
        self.lab.told().contains(words)
    }

    pub(crate) fn await_told(&self, words: &str) {
        let found = testkit::within_limit(|| self.told(words).then_some(()));
        assert!(found.is_some(), "{words:?} was not reported:\n{}", self.lab.told());
    }

    /// Makes a component execute an order.
    pub(crate) fn order(&self, name: &str, word: &str) {
        let (order, new) = (self.lab.path(&format!("{name}.do")), self.lab.path(&format!("{name}.new")));
        std::fs::write(&new, word).unwrap();
        std::fs::rename(new, order).unwrap();
    }

    pub(crate) fn call(&self, words: &[&str]) -> Said {
        self.lab.say(words.iter().copied())
    }

    /// Returns the lines that components have written to a file.
    pub(crate) fn lines(&self, file: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.lab.path(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Ends the system. Returns the exit code of its guardian.
    pub(crate) fn down(mut self) -> Option<i32> {
        let said = self.call(&["down"]);
        assert_eq!(said.code, Some(0), "{said:?}\n{}", self.lab.told());
        let code = wait(&mut self.guardian).code();
        let left: Vec<ProcessId> = self.lab.guard.marked();
        assert!(left.is_empty(), "processes remain: {}", testkit::describe(&left));
        code
    }
}

fn write_file(lab: &Lab, text: &str) {
    let folder = lab.path("");
    let text = text.replace("PROGRAM", &program().to_string_lossy());
    let text = text.replace("FOLDER", folder.to_string_lossy().trim_end_matches('/'));
    std::fs::write(lab.path("system.toml"), format!("[system]\nname = \"lab\"\n{text}")).unwrap();
}

/// Returns the path of the component program.
pub(crate) fn program() -> &'static Path {
    compiled("component")
}

/// Connects to a component, and returns its answer.
pub(crate) fn ask(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}
