//! Tests that change a system file while its components run.

use std::process::Command;

use rustix::process::Signal;
use testkit::ProcessId;

use crate::common::system::{System, ask};
use crate::common::{supported, until};

fn component(name: &str, keys: &str) -> String {
    format!("[component.{name}]\ncommand = [\"PROGRAM\", \"FOLDER/{name}\", \"count\"]\n{keys}\n")
}

fn pids<const N: usize>(system: &System, names: [&str; N]) -> [i32; N] {
    names.map(|name| system.pid(name).pid().get())
}

#[test]
fn a_reload_starts_what_is_new_ends_what_is_gone_and_touches_nothing_else() {
    if !supported() {
        return;
    }
    let system = System::up(&[component("same", ""), component("gone", ""), component("other", "")].concat());
    ["same", "gone", "other"].into_iter().for_each(|name| system.await_state(name, "ready"));
    let [same, gone, other] = pids(&system, ["same", "gone", "other"]);
    system.rewrite(
        &[
            component("new", "needs = [\"same\"]"),
            component("same", ""),
            component("other", "log = \"o.log\""),
        ]
        .concat(),
    );
    let said = system.call(&["reload"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    for words in ["added new", "removed gone", "restarted other"] {
        assert!(said.stderr.contains(words) && system.told(words), "{words}: {said:?}");
    }
    system.await_state("new", "ready");
    until("another process", || {
        let pid = system.status("other")["pid"].as_i64()?;
        (system.state("other") == "ready" && pid != i64::from(other)).then_some(())
    });
    assert_eq!(pids(&system, ["same"]), [same]);
    assert_eq!(system.incarnation("same"), 1);
    until("the end", || ProcessId::of(model::Pid(gone)).is_err().then_some(()));
    // An error message about an unknown component lists the components of the new file.
    let refused = system.call(&["restart", "gone"]);
    assert!(refused.stderr.contains("no component gone") && refused.stderr.contains("new, other, same"));

    // A component that was removed can be added again under its name.
    system.rewrite(
        &[
            component("gone", ""),
            component("new", "needs = [\"same\"]"),
            component("same", ""),
            component("other", "log = \"o.log\""),
        ]
        .concat(),
    );
    let said = system.call(&["reload"]);
    assert!(said.stderr.contains("added gone") && !said.stderr.contains("restarted"), "{said:?}");
    system.await_state("gone", "ready");
    assert_eq!(pids(&system, ["same"]), [same]);

    // A reload of an unchanged file changes nothing.
    let before = pids(&system, ["new", "same", "other"]);
    let said = system.call(&["reload"]);
    assert!(said.stderr.contains("no component is added, removed or restarted"), "{said:?}");
    assert_eq!(pids(&system, ["new", "same", "other"]), before);
    assert_eq!(system.down(), Some(0));
}

#[test]
fn a_reload_names_the_keys_that_wait_for_a_restart() {
    if !supported() {
        return;
    }
    let system = System::up(&component("a", "policy = \"checkpointed\"\nevery = \"200ms\""));
    system.await_state("a", "ready");
    system.rewrite(&component("a", "policy = \"checkpointed\"\nevery = \"300ms\""));
    let said = system.call(&["reload"]);
    let expected = "a: follows after its next `restart` the new every";
    assert!(said.code == Some(0) && said.stderr.contains(expected), "{said:?}");
    assert_eq!(system.status("a")["requested_hz"], 5.0);
    assert_eq!(system.down(), Some(0));
}

#[test]
fn a_file_with_mistakes_or_of_another_system_is_refused_and_changes_nothing() {
    if !supported() {
        return;
    }
    let system = System::up(&component("a", ""));
    system.await_state("a", "ready");
    let before = pids(&system, ["a"]);
    for (text, words) in [
        ("[component.a]\ncommand = [\"PROGRAM\"]\npolcy = \"never\"\n", "unknown key `polcy`"),
        ("[component.a]\ncommand = [\"PROGRAM\"]\nneeds = [\"b\"]\n", "no component `b`"),
    ] {
        system.rewrite(text);
        let said = system.call(&["reload"]);
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.stderr.contains(words) && system.told(words), "{said:?}\n{}", system.lab.told());
    }
    std::fs::write(
        system.lab.path("system.toml"),
        "[system]\nname = \"b\"\n[component.a]\ncommand = [\"x\"]\n",
    )
    .unwrap();
    let said = system.call(&["reload"]);
    assert!(said.code != Some(0) && said.stderr.contains("another `name` or `store`"), "{said:?}");
    let text = "[system]\nname = \"lab\"\nstore = \"elsewhere\"\n[component.a]\ncommand = [\"x\"]\n";
    std::fs::write(system.lab.path("system.toml"), text).unwrap();
    let said = system.call(&["reload"]);
    assert!(said.code != Some(0) && said.stderr.contains("another `name` or `store`"), "{said:?}");
    assert_eq!(pids(&system, ["a"]), before);
    assert_eq!(system.down(), Some(0));
}

#[test]
fn what_this_machine_lacks_is_refused_before_anything_is_touched() {
    if !supported() {
        return;
    }
    let system = System::up(&[component("a", ""), component("b", "")].concat());
    ["a", "b"].into_iter().for_each(|name| system.await_state(name, "ready"));
    let before = pids(&system, ["a", "b"]);
    let secret = system.lab.path("secret");
    std::fs::write(&secret, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let command = |program: &str, keys: &str| {
        [component("a", "log = \"a.log\""), format!("[component.b]\ncommand = [\"{program}\"]\n{keys}\n")]
            .concat()
    };
    let missing = "needs = [\"a\"]\nready = { exec = [\"no-such-probe\"] }";
    for (text, words) in [
        (
            command("sleep", "user = \"nobdy\""),
            ["`user` of component b", "\"nobdy\"", "use the name of an existing user"],
        ),
        (command("no-such-program", ""), ["`command` of component b", "no-such-program", "PATH"]),
        (command("./no-such-program", ""), ["`command` of component b", "No such file", "system.toml:"]),
        (
            command("FOLDER/secret", "user = \"nobody\""),
            ["`command` of component b", "Permission denied", "secret"],
        ),
        (
            command("sleep", "directory = \"gone\""),
            ["`directory` of component b", "FOLDER/gone", "No such file"],
        ),
        (command("sleep", "log = \"gone/b.log\""), ["`log` of component b", "gone/b.log", "No such file"]),
        (command("sleep", missing), ["`ready.exec` of component b", "no-such-probe", "PATH"]),
    ] {
        system.rewrite(&text);
        for order in [&["check", "system.toml"][..], &["reload"]] {
            let said = system.call(order);
            let text = &said.stderr;
            assert_eq!(said.code, Some(2), "{order:?}: {said:?}");
            let folder = system.lab.path("").display().to_string();
            for word in words {
                let word = word.replace("FOLDER", folder.trim_end_matches('/'));
                assert!(text.contains(&word), "{order:?}: {word:?} is missing in\n{text}");
            }
        }
        assert_eq!(system.call(&["check", "--file-only", "system.toml"]).code, Some(0));
        assert_eq!(pids(&system, ["a", "b"]), before);
    }
    // A component whose table stays is not checked: it runs, whatever has happened to its program.
    let own = system.lab.path("own");
    std::fs::copy("/bin/sleep", &own).unwrap();
    let own = "[component.own]\ncommand = [\"FOLDER/own\", \"1000\"]\n";
    system.rewrite(&[component("a", ""), component("b", ""), own.to_owned()].concat());
    assert_eq!(system.call(&["reload"]).code, Some(0));
    system.await_state("own", "ready");
    std::fs::remove_file(system.lab.path("own")).unwrap();
    system.rewrite(&[component("a", ""), own.to_owned()].concat());
    let said = system.call(&["reload"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(pids(&system, ["a"]), [before[0]]);
    assert_eq!(system.down(), Some(0));
}

#[test]
fn keys_of_the_checks_take_effect_without_a_restart() {
    if !supported() {
        return;
    }
    let (first, second) = (testkit::free_port(), testkit::free_port());
    let listens = |probe: u16, more: &str| {
        format!(
            "[component.a]\ncommand = [\"PROGRAM\", \"FOLDER/a\", \"listen={first}\"]\n\
             ready = {{ tcp = \"127.0.0.1:{first}\" }}\n\
             heartbeat = {{ tcp = \"127.0.0.1:{probe}\", every = \"200ms\" }}\n{more}"
        )
    };
    let system = System::up(&listens(first, ""));
    system.await_state("a", "ready");
    let before = pids(&system, ["a"]);
    system.rewrite(&listens(first, "limits = { descriptors = 1000 }\n"));
    assert_eq!(system.call(&["reload"]).code, Some(0));
    assert!(system.told("follows the new limits"), "{}", system.lab.told());
    assert_eq!(pids(&system, ["a"]), before);
    assert_eq!(ask(first).as_deref(), Some("well\n"));
    // No socket listens at the address of the new probe.
    system.rewrite(&listens(second, "limits = { descriptors = 1000 }\n"));
    assert_eq!(system.call(&["reload"]).code, Some(0));
    system.await_told("pid");
    until("a restart", || (system.incarnation("a") > 1).then_some(()));
    system.rewrite(&listens(first, ""));
    assert_eq!(system.call(&["reload"]).code, Some(0));
    system.await_state("a", "ready");
    assert_eq!(system.down(), Some(0));
}

#[test]
fn a_file_that_another_user_can_write_is_not_reloaded() {
    if !supported() {
        return;
    }
    let system = System::up(&component("a", ""));
    system.await_state("a", "ready");
    system.rewrite(&[component("a", ""), component("b", "")].concat());
    let file = system.lab.path("system.toml");
    std::os::unix::fs::chown(&file, Some(65_534), None).unwrap();
    let said = system.call(&["reload"]);
    assert_ne!(said.code, Some(0), "{said:?}");
    assert!(said.stderr.contains("belongs to uid 65534") && said.stderr.contains("help: "), "{said:?}");
    assert_eq!(system.state("b"), "");
    std::os::unix::fs::chown(&file, Some(0), None).unwrap();
    assert_eq!(system.call(&["reload"]).code, Some(0));
    system.await_state("b", "ready");
    assert_eq!(system.down(), Some(0));
}

#[test]
fn a_service_reloads_at_sighup() {
    if !supported() {
        return;
    }
    // A new session has no terminal. setsid(1) executes the program in its own process.
    let system = System::up_with(&component("a", ""), |lab, command| {
        let mut detached = Command::new("setsid");
        // If the test runner ignores SIGHUP, the guardian would also ignore it.
        detached.args(["env", "--default-signal=HUP"]).arg(command.get_program()).args(command.get_args());
        lab.detached(&mut detached);
        *command = detached;
    });
    system.await_state("a", "ready");
    system.rewrite(&[component("a", ""), component("b", "")].concat());
    ProcessId::of(model::Pid(system.guardian.id() as i32)).unwrap().signal(Signal::HUP).unwrap();
    system.await_state("b", "ready");
    assert_eq!(system.incarnation("a"), 1);
    assert_eq!(system.down(), Some(0));
}

#[test]
fn callers_wait_for_an_address_that_only_channels_names() {
    if !supported() {
        return;
    }
    let port = testkit::free_port();
    let client = "python3 -c 'import socket, sys; print(socket.create_connection((\\\"127.0.0.1\\\", int(sys.argv[1]))).recv(9))'";
    let system = System::up(&format!(
        "[component.client]\ncommand = [\"sh\", \"-c\", \"{client} {port}; sleep 1000\"]\nlog = \"client.log\"\n\
         channels = {{ server = \"127.0.0.1:{port}\" }}\n\
         [component.server]\ncommand = [\"PROGRAM\", \"FOLDER/server\", \"listen={port}\", \"delay=1500\"]\n\
         ready = {{ listen = true }}\n"
    ));
    until("an answer", || system.lines("client.log").first().filter(|line| line.contains("well")).map(drop));
    assert_eq!(system.lines("client.log").len(), 1, "{:?}", system.lines("client.log"));
    assert_eq!(system.down(), Some(0));
}

/// Answers each connection with the number of its user.
const TELLS_USER: &str = "import os, socket\nlistener = socket.socket()\n\
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\nlistener.bind((\"127.0.0.1\", PORT))\n\
    listener.listen(64)\nwhile True:\n    peer, _ = listener.accept()\n    \
    peer.sendall(b\"%d\" % os.getuid())\n    peer.close()\n";

#[test]
fn another_user_takes_over_the_listening_socket_and_the_log() {
    if !supported() {
        return;
    }
    let port = testkit::free_port();
    let of = |user: &str, policy: &str| {
        let program = TELLS_USER.replace("PORT", &port.to_string());
        format!(
            "[component.a]\ncommand = [\"python3\", \"-c\", '''{program}''']\nuser = \"{user}\"\ndirectory = \"/\"\n\
             log = \"a.log\"\nready = {{ tcp = \"127.0.0.1:{port}\" }}\n{policy}\n"
        )
    };
    for policy in ["", "policy = \"checkpointed\"\nevery = \"100ms\""] {
        let system = System::up(&of("65534", policy));
        system.await_state("a", "ready");
        assert_eq!(ask(port).as_deref(), Some("65534"));
        system.rewrite(&of("1", policy));
        let said = system.call(&["reload"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        until("the other user", || (ask(port).as_deref() == Some("1")).then_some(()));
        system.await_state("a", "ready");
        assert_eq!(system.down(), Some(0));
    }
}
