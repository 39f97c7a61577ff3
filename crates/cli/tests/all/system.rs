//! Tests of `undying up` and of the orders to a system (a group of supervised programs).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use model::Pid;
use rustix::process::Signal;
use serde_json::Value;
use testkit::ProcessId;

use crate::common::system::{System, ask, program};
use crate::common::{Lab, supported, until, wait};

#[test]
fn components_start_in_the_order_of_their_needs_and_end_in_reverse() {
    if !supported() {
        return;
    }
    let port = testkit::free_port();
    let system = System::up(&format!(
        "[component.c]\ncommand = [\"PROGRAM\", \"FOLDER/all\", \"ready\"]\nneeds = [\"b\"]\nready = {{ notify = true }}\n\
         [component.a]\ncommand = [\"PROGRAM\", \"FOLDER/all\", \"listen={port}\", \"delay=300\"]\n\
         ready = {{ tcp = \"127.0.0.1:{port}\" }}\n\
         [component.b]\ncommand = [\"PROGRAM\", \"FOLDER/all\", \"delay=300\", \"ready\"]\nneeds = [\"a\"]\n\
         ready = {{ log = \"listening now\" }}\nlog = \"b.log\"\n"
    ));
    system.await_state("c", "ready");
    assert_eq!([system.state("a"), system.state("b")], ["ready", "ready"]);
    let pids = ["a", "b", "c"].map(|name| system.pid(name).pid().to_string());
    let ups: Vec<String> = pids.iter().map(|pid| format!("up {pid}")).collect();
    assert_eq!(system.lines("all"), ups);
    assert_eq!(ask(port).as_deref(), Some("well\n"));
    assert_eq!(system.status("c")["component"]["reports"], "at work");
    assert_eq!(system.status("c")["component"]["needs"], serde_json::json!(["b"]));
    let file = system.lab.path("all");
    let lab = Lab::new();
    std::fs::copy(&file, lab.path("before")).unwrap();
    let ends: Vec<String> = pids.iter().rev().map(|pid| format!("end {pid}")).collect();
    let expected = [ups, ends].concat();
    let mut system = system;
    assert_eq!(system.call(&["down"]).code, Some(0));
    assert_eq!(wait(&mut system.guardian).code(), Some(0));
    assert_eq!(system.lines("all"), expected);
}

#[test]
fn what_dies_comes_back_by_its_policy() {
    if !supported() {
        return;
    }
    let system = System::up(
        "[component.fresh]\ncommand = [\"PROGRAM\", \"FOLDER/fresh\", \"count\"]\n\
         [component.kept]\ncommand = [\"PROGRAM\", \"FOLDER/kept\", \"count\"]\npolicy = \"checkpointed\"\nevery = \"50ms\"\n\
         log = \"kept.log\"\n\
         [component.once]\ncommand = [\"PROGRAM\", \"FOLDER/once\"]\npolicy = \"never\"\n",
    );
    let count = |name: &str| system.lines(&format!("{name}.count")).first()?.parse::<u64>().ok();
    until("counts", || (count("fresh")? > 100 && count("kept")? > 100).then_some(()));
    until("a checkpoint", || (system.status("kept")["checkpoints"].as_u64()? > 3).then_some(()));
    for name in ["fresh", "kept", "once"] {
        system.pid(name).signal(Signal::KILL).unwrap();
    }
    system.await_state("once", "ended");
    system.await_incarnation("fresh", 2);
    system.await_incarnation("kept", 2);
    let begun_anew = until("a count", || count("fresh"));
    let went_on = until("a count", || count("kept"));
    assert!(went_on > 50, "the checkpointed one is at {went_on}");
    assert_eq!(system.lines("fresh").len(), 2, "{begun_anew}");
    assert_eq!(system.lines("once").len(), 1);
    assert!(system.told("is back at checkpoint"), "{}", system.lab.told());
    // An order starts the component, although its policy never does.
    let said = system.call(&["start", "once"]);
    assert!(said.code == Some(0) && said.stderr.contains("once is ready"), "{said:?}");
    assert_eq!(system.call(&["down"]).code, Some(0));
    for (name, policy) in [("fresh", "stateless"), ("kept", "checkpointed"), ("once", "never")] {
        assert_eq!(system.status(name)["policy"], policy, "after the end of the system");
    }
}

#[test]
fn orders_end_start_and_restart_one_component() {
    if !supported() {
        return;
    }
    let system = System::up(
        "[component.a]\ncommand = [\"PROGRAM\", \"FOLDER/a\", \"ready\", \"delay=100\"]\nready = { notify = true }\n\
         [component.b]\ncommand = [\"PROGRAM\", \"FOLDER/b\"]\nneeds = [\"a\"]\n",
    );
    system.await_state("b", "ready");
    let b = system.pid("b");
    let said = system.call(&["stop", "a"]);
    assert!(said.code == Some(0) && said.stderr.contains("a is stopped"), "{said:?}");
    assert_eq!((system.state("a"), system.state("b")), ("stopped".to_owned(), "ready".to_owned()));
    assert_eq!(system.lines("a").len(), 2);
    assert_eq!(system.call(&["start", "a"]).code, Some(0));
    assert_eq!(system.state("a"), "ready");
    let before = system.pid("a");
    assert_eq!(system.call(&["restart", "a"]).code, Some(0));
    assert!(system.pid("a") != before && system.pid("b") == b);
    assert_eq!(system.lines("a").len(), 5, "{:?}", system.lines("a"));
    let unknown = system.call(&["stop", "d"]);
    assert_eq!(unknown.code, Some(3));
    assert!(unknown.stderr.contains("no component d") && unknown.stderr.contains("a, b"), "{unknown:?}");
    assert_eq!(system.down(), Some(0));
}

#[test]
fn a_component_that_cannot_start_or_always_dies_is_given_up_and_the_others_go_on() {
    if !supported() {
        return;
    }
    let system = System::up(
        "[component.good]\ncommand = [\"PROGRAM\", \"FOLDER/good\"]\n\
         [component.missing]\ncommand = [\"/no/such/program\"]\n\
         [component.waits]\ncommand = [\"PROGRAM\", \"FOLDER/waits\"]\nneeds = [\"missing\"]\n\
         [component.dies]\ncommand = [\"sh\", \"-c\", \"exit 3\"]\n\
         restart = { max = \"2/1m\", on_give_up = \"exec\", exec = [\"sh\", \"-c\", \
         \"echo $UNDYING_SYSTEM $UNDYING_COMPONENT > FOLDER/given-up\"] }\n",
    );
    system.await_state("good", "ready");
    system.await_state("missing", "failed");
    system.await_state("dies", "gave-up");
    assert_eq!(system.state("waits"), "waiting");
    assert_eq!(system.status("waits")["component"]["waits_for"], serde_json::json!(["missing"]));
    let picture = system.call(&["status", "--graph"]).stdout;
    assert!(picture.starts_with("digraph system {") && picture.trim_end().ends_with('}'), "{picture}");
    for line in [
        "\"missing\" [label=\"missing\\nstateless, failed\", fillcolor=tomato];",
        "\"waits\" -> \"missing\" [style=dashed];",
        "\"good\" [label=\"good\\nstateless, ready\", fillcolor=palegreen];",
    ] {
        assert!(picture.contains(line), "{line} is missing in\n{picture}");
    }
    until("the program of exec", || (system.lines("given-up") == ["lab dies"]).then_some(()));
    assert!(system.told("no such program") || system.told("No such file"), "{}", system.lab.told());
    let deaths = system.call(&["deaths", "dies"]);
    assert!(deaths.stdout.contains("exit 3") || deaths.stdout.contains("exited with 3"), "{deaths:?}");
    let refused = system.call(&["start", "missing"]);
    assert!(refused.code == Some(125) && refused.stderr.contains("missing is failed"), "{refused:?}");
    let error = system.status("missing")["component"]["last_error"].as_str().unwrap().to_owned();
    assert!(
        error.contains("/no/such/program") && refused.stderr.contains("undying status missing"),
        "{error}"
    );
    assert!(!system.told("missing: was restarted"), "{}", system.lab.told());
    assert_eq!(system.state("good"), "ready");
    assert_eq!(system.down(), Some(0));
}

#[test]
fn dependents_are_restarted_with_a_component_that_was_given_up() {
    if !supported() {
        return;
    }
    let system = System::up(
        "[component.base]\ncommand = [\"PROGRAM\", \"FOLDER/base\"]\n\
         restart = { max = \"1/1m\", on_give_up = \"restart-dependents\" }\n\
         [component.user]\ncommand = [\"PROGRAM\", \"FOLDER/user\"]\nneeds = [\"base\"]\n\
         [component.other]\ncommand = [\"PROGRAM\", \"FOLDER/other\"]\n",
    );
    system.await_state("user", "ready");
    system.await_state("other", "ready");
    for deaths in 1..=2 {
        until("the next life", || (system.lines("base").len() >= deaths).then_some(()));
        system.await_state("base", "ready");
        system.pid("base").signal(Signal::KILL).unwrap();
    }
    system.await_told("is started again with the components that need it");
    until("the dependent", || (system.lines("user").len() >= 3).then_some(()));
    system.await_state("user", "ready");
    assert_eq!(system.lines("other").len(), 1);
    assert_eq!(system.down(), Some(0));
}

#[test]
fn hearts_that_stop_are_noticed() {
    if !supported() {
        return;
    }
    let (probed, silent) = (testkit::free_port(), testkit::free_port());
    let system = System::up(&format!(
        "[component.beats]\ncommand = [\"PROGRAM\", \"FOLDER/beats\", \"beat=100\"]\n\
         heartbeat = {{ notify = true, every = \"2s\" }}\n\
         [component.probed]\ncommand = [\"PROGRAM\", \"FOLDER/probed\", \"listen={probed}\"]\n\
         ready = {{ listen = true }}\nheartbeat = {{ exec = [\"sh\", \"-c\", \"test ! -e FOLDER/sick\"], every = \"200ms\" }}\n\
         [component.hangs]\ncommand = [\"PROGRAM\", \"FOLDER/hangs\", \"listen={silent}\"]\n\
         ready = {{ tcp = \"127.0.0.1:{silent}\" }}\nheartbeat = {{ http = \"http://127.0.0.1:{silent}/\", every = \"300ms\", misses = 3 }}\n"
    ));
    for name in ["beats", "probed"] {
        system.await_state(name, "ready");
    }
    // The component answers with data that is not HTTP, and otherwise works.
    system.await_told("hangs: pid");
    std::fs::write(system.lab.path("sick"), "").unwrap();
    system.await_told("probed: pid");
    std::fs::remove_file(system.lab.path("sick")).unwrap();
    system.await_incarnation("probed", 2);
    assert_eq!(system.incarnation("beats"), 1, "{}", system.lab.told());
    system.order("beats", "hang");
    system.await_incarnation("beats", 2);
    let fault = system.status("beats")["component"]["last_fault"].as_str().unwrap().to_owned();
    assert!(fault.contains("heartbeat"), "{fault}");
    system.order("beats", "trigger");
    system.await_incarnation("beats", 3);
    assert_eq!(system.down(), Some(0));
}

#[test]
fn limits_and_complaints_restart_a_component() {
    if !supported() {
        return;
    }
    let system = System::up(
        "[component.fat]\ncommand = [\"PROGRAM\", \"FOLDER/fat\"]\nlimits = { memory = \"32MiB\", descriptors = 200 }\n\
         restart = { max = \"9/1m\" }\n\
         [component.bad]\ncommand = [\"PROGRAM\", \"FOLDER/bad\"]\ncomplaints = { quorum = 3, within = \"1m\" }\n\
         [component.client]\ncommand = [\"sh\", \"-c\", \"trap 'exit 0' TERM; while :; do if [ -e FOLDER/go ]; then \
         rm FOLDER/go; UNDYING complain bad --why slow --weight 2 --store FOLDER/store; fi; sleep 0.05; done\"]\nneeds = [\"bad\"]\n"
            .replace("UNDYING", env!("CARGO_BIN_EXE_undying"))
            .as_str(),
    );
    system.await_state("client", "ready");
    system.order("fat", "eat");
    system.await_incarnation("fat", 2);
    assert!(system.status("fat")["component"]["last_fault"].as_str().unwrap().contains("memory"));
    system.order("fat", "fds");
    system.await_incarnation("fat", 3);
    assert!(system.status("fat")["component"]["last_fault"].as_str().unwrap().contains("descriptors"));
    let said = system.call(&["complain", "bad", "--why", "no answers"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(system.told("the operator complains: no answers"));
    assert_eq!(system.status("bad")["component"]["complaints"], 1);
    std::fs::write(system.lab.path("go"), "").unwrap();
    system.await_incarnation("bad", 2);
    assert!(system.told("client complains with weight 2: slow"), "{}", system.lab.told());
    let said = system.call(&["complain", "client", "--why", "useless"]);
    assert_eq!(said.code, Some(0));
    assert_eq!(system.down(), Some(0));
}

#[test]
fn a_component_that_forks_away_leaves_nothing_behind() {
    if !supported() {
        return;
    }
    let system = System::up(
        "[component.leaver]\ncommand = [\"PROGRAM\", \"FOLDER/leaver\"]\n\
         [component.other]\ncommand = [\"PROGRAM\", \"FOLDER/other\"]\n",
    );
    for name in ["leaver", "other"] {
        system.await_state(name, "ready");
    }
    let running = || {
        let pids = system.lab.guard.marked().into_iter();
        pids.filter(|process| {
            std::fs::read_link(format!("/proc/{}/exe", process.pid())).is_ok_and(|exe| exe == program())
        })
        .count()
    };
    until("both", || (running() == 2).then_some(()));
    let leaver = system.lab.path("leaver").to_string_lossy().into_owned();
    system.order("leaver", "fork");
    system.await_incarnation("leaver", 2);
    assert_eq!(running(), 2, "the process that went away is left");
    // A process that has overwritten its environment, like nginx, is found by its session.
    system.order("leaver", "leave");
    system.await_incarnation("leaver", 3);
    let all = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten().filter(|process| {
            std::fs::read_link(process.path().join("exe")).is_ok_and(|exe| exe == program())
                && std::fs::read_to_string(process.path().join("cmdline"))
                    .is_ok_and(|line| line.contains(&*leaver))
        });
        processes.count()
    };
    assert_eq!(all(), 1, "the process without an environment is left");
    assert_eq!(system.incarnation("other"), 1);
    // In a new session and without its environment, a process cannot be assigned to one of the components.
    system.order("leaver", "vanish");
    system.await_incarnation("leaver", 4);
    assert_eq!(system.down(), Some(0));
    assert_eq!(all(), 0, "a process is left when the system has ended");
}

#[test]
fn a_kill_at_the_birth_of_a_restore_loses_no_checkpoint() {
    if !supported() {
        return;
    }
    let system = System::up(
        "[component.kept]\ncommand = [\"PROGRAM\", \"FOLDER/kept\", \"count\"]\npolicy = \"checkpointed\"\n\
         every = \"50ms\"\nlog = \"kept.log\"\nrestart = { max = \"100/1m\", backoff = \"1ms..10ms\" }\n",
    );
    until("a checkpoint", || (system.status("kept")["checkpoints"].as_u64()? > 3).then_some(()));
    for round in 2..6 {
        let first = system.pid("kept");
        first.signal(Signal::KILL).unwrap();
        // The process under construction has the pid of the dead process. The loop has no poll interval, so the process
        // is killed before it can be traced.
        let deadline = Instant::now() + Duration::from_secs(20);
        let second = loop {
            match ProcessId::of(first.pid()) {
                Ok(found) if found != first => break found,
                _ => assert!(Instant::now() < deadline, "{}", system.lab.told()),
            }
        };
        let _ = second.signal(Signal::KILL);
        system.await_incarnation("kept", round);
    }
    let told = system.lab.told();
    assert!(!told.contains("cannot be restored") && !told.contains("from the beginning: "), "{told}");
    assert_eq!(system.lines("kept").len(), 1, "{told}");
    assert_eq!(system.down(), Some(0));
}

#[test]
fn a_guardian_whose_stderr_is_not_read_goes_on() {
    if !supported() {
        return;
    }
    let (unread, full) = std::io::pipe().unwrap();
    let mut system = System::up_with(
        "[component.a]\ncommand = [\"PROGRAM\", \"FOLDER/a\"]\nlog = \"a.log\"\n",
        |_, command| {
            let capacity = rustix::pipe::fcntl_getpipe_size(&full).unwrap();
            (&full).write_all(&vec![b'.'; capacity]).unwrap();
            command.stderr(full.try_clone().unwrap());
        },
    );
    for number in 1..4 {
        system.await_incarnation("a", number);
        system.pid("a").signal(Signal::KILL).unwrap();
    }
    assert_eq!(system.call(&["down"]).code, Some(0));
    // The guardian waits for a reader of its last lines, but only for a limited time.
    assert_eq!(wait(&mut system.guardian).code(), Some(0));
    drop(unread);
}

/// Returns the processes that keep the listeners for a guardian: its children with the same program file.
fn holders_of(guardian: Pid) -> Vec<Pid> {
    let exe = |pid: Pid| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    let tasks = std::fs::read_dir(format!("/proc/{guardian}/task")).into_iter().flatten().flatten();
    let listed = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let pids: Vec<Pid> = listed
        .flat_map(|pids| pids.split_whitespace().map(|pid| Pid(pid.parse().unwrap())).collect::<Vec<_>>())
        .collect();
    pids.into_iter().filter(|pid| exe(*pid).is_some() && exe(*pid) == exe(guardian)).collect()
}

#[test]
fn a_killed_process_that_keeps_the_listeners_is_replaced() {
    if !supported() {
        return;
    }
    let port = testkit::free_port();
    let system = System::up(&format!(
        "[component.web]\ncommand = [\"PROGRAM\", \"FOLDER/web\", \"listen={port}\"]\nready = {{ listen = true }}\n"
    ));
    system.await_state("web", "ready");
    let guardian = Pid(system.guardian.id() as i32);
    if holders_of(guardian).is_empty() {
        return println!("unsupported: listeners are not kept: {}", system.lab.told());
    }
    let mut seen = Vec::new();
    for incarnation in 2..5 {
        let holders = until("two new holders", || {
            let now = holders_of(guardian);
            (now.len() == 2 && now.iter().all(|pid| !seen.contains(pid))).then_some(now)
        });
        holders.iter().for_each(|pid| ProcessId::of(*pid).unwrap().signal(Signal::KILL).unwrap());
        seen.extend(holders);
        system.pid("web").signal(Signal::KILL).unwrap();
        system.await_incarnation("web", incarnation);
        until("an answer", || ask(port));
    }
    assert_eq!(system.down(), Some(0));
}

#[test]
fn a_component_that_does_not_end_is_killed_after_a_time() {
    if !supported() {
        return;
    }
    let component = |name: &str, keys: &str| {
        format!("[component.{name}]\ncommand = [\"PROGRAM\", \"FOLDER/{name}\", \"stay\"]\n{keys}\n")
    };
    let file = |keys: &str| [component("stays", ""), component("soon", keys)].concat();
    // A shell without job control ignores SIGINT in its background commands, and programs inherit this.
    let system = System::up_with(&file("stop_timeout = \"1s\""), |lab, command| {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "trap '' INT; exec \"$@\"", "sh"])
            .arg(command.get_program())
            .args(command.get_args());
        lab.detached(&mut shell);
        *command = shell;
    });
    for name in ["stays", "soon"] {
        system.await_state(name, "ready");
        until("its first line", || (!system.lines(name).is_empty()).then_some(()));
    }
    let stop = |name: &str| {
        let begun = Instant::now();
        assert_eq!(system.call(&["stop", name]).code, Some(0));
        begun.elapsed()
    };
    assert!(stop("stays") > Duration::from_secs(9));
    assert!(system.told("stays: did not end within 10 s of the request"), "{}", system.lab.told());
    let took = stop("soon");
    assert!(took > Duration::from_secs(1) && took < Duration::from_secs(8), "{took:?}");
    assert!(system.told("soon: did not end within 1 s of the request"), "{}", system.lab.told());

    // The new signal takes effect without a restart.
    assert_eq!(system.call(&["start", "soon"]).code, Some(0));
    let before = system.pid("soon");
    until("its second line", || (system.lines("soon").len() == 2).then_some(()));
    system.rewrite(&file("stop_signal = \"SIGINT\""));
    assert_eq!(system.call(&["reload"]).code, Some(0));
    assert_eq!(system.pid("soon"), before);
    assert!(stop("soon") < Duration::from_secs(8));
    let deaths = system.call(&["events", "soon"]).stdout;
    assert!(deaths.contains("signal 2"), "{deaths}");
    assert_eq!(system.down(), Some(0));
}

#[test]
fn a_group_shares_the_fate_of_its_members() {
    if !supported() {
        return;
    }
    let system = System::up(
        "[component.a]\ncommand = [\"PROGRAM\", \"FOLDER/a\"]\n[component.b]\ncommand = [\"PROGRAM\", \"FOLDER/b\"]\n\
         [component.c]\ncommand = [\"PROGRAM\", \"FOLDER/c\"]\n\
         [group.trio]\nmembers = [\"a\", \"b\", \"c\"]\nstrategy = \"rest\"\n",
    );
    for name in ["a", "b", "c"] {
        system.await_state(name, "ready");
        until("its first line", || (!system.lines(name).is_empty()).then_some(()));
    }
    system.pid("b").signal(Signal::KILL).unwrap();
    system.await_incarnation("b", 2);
    system.await_incarnation("c", 2);
    assert_eq!(system.incarnation("a"), 1);
    assert!(system.told("c: is restarted, since b of its group died"), "{}", system.lab.told());
    assert_eq!(system.down(), Some(0));
}

/// While files are rolled back, messages wait, because they may be written to one of these files. Here, standard error is a
/// file. Decisions about other components do not wait for messages.
#[test]
fn a_group_learns_of_a_death_before_the_dead_member_runs_again() {
    if !supported() {
        return;
    }
    let system = System::up(
        "[component.a]\ncommand = [\"PROGRAM\", \"FOLDER/a\", \"count\"]\npolicy = \"checkpointed\"\nevery = \"50ms\"\n\
         log = \"a.log\"\nrestart = { max = \"100/1m\", backoff = \"60s..60s\", healthy = \"10m\" }\n\
         [component.b]\ncommand = [\"PROGRAM\", \"FOLDER/b\"]\nrestart = { max = \"100/1m\", backoff = \"1ms..10ms\" }\n\
         [group.pair]\nmembers = [\"a\", \"b\"]\nstrategy = \"all\"\n",
    );
    // Messages follow a change at once, and the states of all components are written a moment later.
    let ready = |name: &str| system.lab.told().matches(&format!("{name}: ready after")).count();
    until("a checkpoint", || (system.status("a")["checkpoints"].as_u64()? > 3).then_some(()));
    until("that both are ready", || ((ready("a"), ready("b")) == (1, 1)).then_some(()));
    // The first restart does not wait, and the second one does. After SIGKILL, which comes from outside, none would wait if
    // there is a checkpoint.
    system.pid("a").signal(Signal::ABORT).unwrap();
    until("that both are ready again", || ((ready("a"), ready("b")) == (2, 2)).then_some(()));
    system.pid("a").signal(Signal::ABORT).unwrap();
    until("that b is ready again", || (ready("b") == 3).then_some(()));
    assert_eq!(ready("a"), 2, "{}", system.lab.told());
    assert_eq!(system.down(), Some(0));
}

#[test]
fn a_component_gets_its_environment_directory_user_and_log() {
    if !supported() {
        return;
    }
    let system = System::up(
        "[component.who]\ncommand = [\"sh\", \"-c\", \"id -u; id -g; pwd; echo $PLACE; echo $HOME; echo ${LISTEN_FDS-none}; \
         ps -o sid= -p $$ | tr -d ' '; echo $$; sleep 600\"]\nuser = \"nobody\"\nenvironment = { PLACE = \"here\" }\n\
         directory = \"/tmp\"\nlog = \"who.log\"\n\
         [component.wrong]\ncommand = [\"true\"]\nuser = \"no-such-user\"\n",
    );
    let lines = until("the log", || {
        let lines = system.lines("who.log");
        (lines.len() >= 8).then_some(lines)
    });
    assert_eq!(lines[0], "65534");
    assert_eq!(lines[2..4], ["/tmp", "here"]);
    assert_eq!((lines[5].as_str(), &lines[6]), ("none", &lines[7]), "it leads a session");
    system.await_state("wrong", "failed");
    assert!(system.told("no user \"no-such-user\""), "{}", system.lab.told());
    assert_eq!(system.down(), Some(0));
}

#[test]
fn names_that_the_user_of_a_component_controls_are_used_with_the_rights_of_this_user() {
    if !supported() {
        return;
    }
    const USER: u32 = 65_534;
    // Unlike the directory of a lab, each user can search this directory.
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    for name in ["theirs", "closed", "closed/inner"] {
        std::fs::create_dir(path(name)).unwrap();
        std::fs::set_permissions(path(name), PermissionsExt::from_mode(0o755)).unwrap();
    }
    std::fs::set_permissions(path("closed"), PermissionsExt::from_mode(0o700)).unwrap();
    chown(path("theirs"), Some(USER), Some(USER)).unwrap();
    std::fs::write(path("secret"), "of root\n").unwrap();
    std::fs::set_permissions(path("secret"), PermissionsExt::from_mode(0o600)).unwrap();
    symlink("../secret", path("theirs/link")).unwrap();
    symlink("../made", path("theirs/new-link")).unwrap();
    symlink("../closed/inner", path("theirs/way")).unwrap();
    assert!(Command::new("mkfifo").arg(path("theirs/fifo")).status().unwrap().success());
    let component = |name: &str, keys: &str| {
        format!(
            "[component.{name}]\ncommand = [\"sh\", \"-c\", \"pwd; exec sleep 600\"]\nuser = \"{USER}\"\n{}\n",
            keys.replace("HERE", &folder.path().to_string_lossy())
        )
    };
    let system = System::up(
        &[
            component("link", "log = \"HERE/theirs/link\""),
            component("new-link", "log = \"HERE/theirs/new-link\""),
            component("fifo", "log = \"HERE/theirs/fifo\""),
            component("way", "directory = \"HERE/theirs/way\""),
            component("theirs", "log = \"HERE/theirs/log\"\ndirectory = \"HERE/theirs\""),
            component("ours", "log = \"HERE/log\"\ndirectory = \"HERE/closed/inner\""),
        ]
        .concat(),
    );
    for name in ["link", "new-link", "fifo", "way"] {
        system.await_state(name, "failed");
    }
    for name in ["theirs", "ours"] {
        system.await_state(name, "ready");
    }
    let lines = |name: &str| {
        until("a line", || std::fs::read_to_string(path(name)).ok().filter(|text| !text.is_empty()))
    };
    let owner = |name: &str| std::fs::metadata(path(name)).unwrap().uid();
    assert_eq!(lines("theirs/log").trim(), path("theirs").to_str().unwrap());
    assert_eq!((owner("theirs/log"), owner("log")), (USER, 0));
    // The paths that only root can change are used with the rights of root.
    assert_eq!(lines("log").trim(), path("closed/inner").to_str().unwrap());
    // After the first start, the user replaces the log by a link.
    std::fs::remove_file(path("theirs/log")).unwrap();
    symlink("../secret", path("theirs/log")).unwrap();
    let said = system.call(&["restart", "theirs"]);
    system.await_state("theirs", "failed");
    assert!(system.told("with the rights of uid 65534"), "{said:?} {}", system.lab.told());
    assert!(system.told("change to the directory"), "{}", system.lab.told());
    assert_eq!(std::fs::read_to_string(path("secret")).unwrap(), "of root\n");
    assert!(!path("made").exists());
    assert_eq!(system.down(), Some(0));
}

/// The outcomes that the clients of one address have seen.
#[derive(Default, Debug)]
struct Met {
    answered: usize,
    /// Connections that ended without an answer, because the component died.
    ended: usize,
    refused: usize,
    longest: Duration,
}

/// Connects repeatedly until `is_over` is set.
fn clients(port: u16, is_over: &AtomicBool) -> Met {
    let mut met = Met::default();
    while !is_over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        match TcpStream::connect(("127.0.0.1", port)) {
            Err(_) => met.refused += 1,
            Ok(mut stream) => {
                stream.set_read_timeout(Some(crate::common::LIMIT)).unwrap();
                let mut answer = String::new();
                match stream.read_to_string(&mut answer) {
                    Ok(_) if answer == "well\n" => met.answered += 1,
                    _ => met.ended += 1,
                }
            }
        }
        met.longest = met.longest.max(begun.elapsed());
    }
    met
}

#[test]
fn clients_are_never_refused_while_a_component_dies_and_comes_back() {
    if !supported() {
        return;
    }
    let (fresh, kept) = (testkit::free_port(), testkit::free_port());
    let system = System::up(&format!(
        "[component.fresh]\ncommand = [\"PROGRAM\", \"FOLDER/fresh\", \"listen={fresh}\"]\n\
         ready = {{ tcp = \"127.0.0.1:{fresh}\" }}\nrestart = {{ max = \"100/1m\", backoff = \"10ms..50ms\" }}\n\
         [component.kept]\ncommand = [\"PROGRAM\", \"FOLDER/kept\", \"listen={kept}\"]\npolicy = \"checkpointed\"\n\
         every = \"30ms\"\nready = {{ tcp = \"127.0.0.1:{kept}\" }}\nrestart = {{ max = \"100/1m\", backoff = \"10ms..50ms\" }}\n"
    ));
    system.await_state("fresh", "ready");
    system.await_state("kept", "ready");
    until("a checkpoint", || (system.status("kept")["checkpoints"].as_u64()? > 2).then_some(()));
    let mut random = testkit::seeded("clients_are_never_refused");
    let is_over = AtomicBool::new(false);
    let kills = testkit::rounds(6, 100) as u64;
    std::thread::scope(|scope| {
        let loads = [fresh, kept].map(|port| {
            scope.spawn({
                let is_over = &is_over;
                move || clients(port, is_over)
            })
        });
        let over = testkit::SetAtEnd(&is_over);
        for number in 0..kills {
            std::thread::sleep(testkit::moment(&mut random, Duration::from_millis(150)));
            for name in ["fresh", "kept"] {
                system.pid(name).signal(Signal::KILL).unwrap();
                system.await_incarnation(name, number + 2);
            }
        }
        drop(over);
        for (load, name) in loads.into_iter().zip(["fresh", "kept"]) {
            let met = load.join().unwrap();
            println!("{name}: {met:?}");
            assert!(
                met.refused == 0 && met.answered as u64 > kills,
                "{name}: {met:?}\n{}",
                system.lab.told()
            );
            assert!(met.ended as u64 <= 2 * kills, "{name}: {met:?}");
        }
    });
    let channels = system.status("kept")["channels"].clone();
    assert_eq!(channels[0]["local"], format!("127.0.0.1:{kept}"), "{channels}");
    assert_eq!(channels[0]["level"], "L0");
    assert_eq!(system.down(), Some(0));
    assert!(TcpStream::connect(("127.0.0.1", fresh)).is_err(), "nothing serves it any more");
}

#[test]
fn a_caller_waits_for_a_component_that_is_not_up_yet() {
    if !supported() {
        return;
    }
    let port = testkit::free_port();
    let system = System::up(&format!(
        "[component.client]\ncommand = [\"sh\", \"-c\", \"exec 3<>/dev/tcp/127.0.0.1/{port} && cat <&3 > FOLDER/answer; \
         echo $? > FOLDER/code; sleep 600\"]\n\
         [component.server]\ncommand = [\"PROGRAM\", \"FOLDER/server\", \"listen={port}\", \"delay=1500\"]\n\
         ready = {{ tcp = \"127.0.0.1:{port}\" }}\n"
    ).replace("\"sh\"", "\"bash\""));
    system.await_state("server", "ready");
    until("the client", || (system.lines("code") == ["0"]).then_some(()));
    assert_eq!(system.lines("answer"), ["well"]);
    assert_eq!(system.down(), Some(0));
}

/// Flips one bit after the last instruction in the text of a program, through the interface for debuggers.
fn flip_a_bit_of_text(process: ProcessId) {
    use std::os::unix::fs::FileExt;
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", process.pid())).unwrap();
    let own = program().to_string_lossy();
    let text = maps.lines().find(|line| line.contains(" r-xp ") && line.ends_with(&*own)).unwrap();
    let end = text.split([' ', '-']).nth(1).unwrap();
    let at = u64::from_str_radix(end, 16).unwrap() - 8;
    let memory = std::fs::File::options().read(true).write(true).open(format!("/proc/{}/mem", process.pid()));
    let memory = memory.unwrap();
    let mut byte = [0_u8];
    memory.read_exact_at(&mut byte, at).unwrap();
    memory.write_all_at(&[byte[0] ^ 16], at).unwrap();
}

#[test]
fn a_bit_that_flips_in_code_is_found_and_gone_within_two_sweeps() {
    if !supported() {
        return;
    }
    let port = testkit::free_port();
    let system = System::up(&format!(
        "[component.a]\ncommand = [\"PROGRAM\", \"FOLDER/a\", \"listen={port}\"]\nintegrity = \"1s\"\n\
         ready = {{ tcp = \"127.0.0.1:{port}\" }}\n"
    ));
    system.await_state("a", "ready");
    // The first sweep records the correct content.
    std::thread::sleep(Duration::from_secs(2));
    flip_a_bit_of_text(system.pid("a"));
    let begun = Instant::now();
    system.await_incarnation("a", 2);
    assert!(system.told("1 bit: memory has changed by itself"), "{}", system.lab.told());
    assert!(system.told("executable pages that differ"), "{}", system.lab.told());
    println!("found and restarted after {:.2} s with a sweep of 1 s", begun.elapsed().as_secs_f64());
    assert_eq!(ask(port).as_deref(), Some("well\n"));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(system.incarnation("a"), 2, "{}", system.lab.told());
    assert_eq!(system.down(), Some(0));
}

impl System {
    /// Kills the guardian, and starts another guardian.
    fn replace_guardian(&mut self) {
        self.guardian.kill().unwrap();
        wait(&mut self.guardian);
        self.guardian = self.lab.undying(["up", "system.toml"]).spawn().unwrap();
    }
}

#[test]
fn a_killed_guardian_harms_nothing_and_the_next_one_takes_everything_over() {
    if !supported() {
        return;
    }
    let port = testkit::free_port();
    let mut system = System::up(&format!(
        "[component.fresh]\ncommand = [\"PROGRAM\", \"FOLDER/fresh\", \"listen={port}\", \"keep\", \"ready\"]\n\
         ready = {{ notify = true, timeout = \"5s\" }}\n\
         [component.kept]\ncommand = [\"PROGRAM\", \"FOLDER/kept\", \"count\"]\npolicy = \"checkpointed\"\nevery = \"50ms\"\n\
         [component.user]\ncommand = [\"PROGRAM\", \"FOLDER/user\"]\nneeds = [\"fresh\"]\n"
    ));
    const NAMES: [&str; 3] = ["fresh", "kept", "user"];
    NAMES.iter().for_each(|name| system.await_state(name, "ready"));
    let pids = NAMES.map(|name| system.pid(name));
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.set_read_timeout(Some(crate::common::LIMIT)).unwrap();
    let mut echo = move |byte: u8| {
        client.write_all(&[byte]).unwrap();
        let mut back = [0_u8];
        client.read_exact(&mut back).unwrap();
        assert_eq!(back, [byte]);
    };
    let mut random = testkit::seeded("a_killed_guardian");
    for round in 0..testkit::rounds(5, 100) {
        echo(round as u8);
        std::thread::sleep(testkit::moment(&mut random, Duration::from_millis(200)));
        system.replace_guardian();
        echo(round as u8);
        until("the next guardian", || {
            let guardian = Some(i64::from(system.guardian.id()));
            NAMES.iter().all(|name| system.status(name)["guardian"].as_i64() == guardian).then_some(())
        });
        NAMES.iter().for_each(|name| system.await_state(name, "ready"));
        assert_eq!(NAMES.map(|name| system.pid(name)), pids, "{}", system.lab.told());
    }
    echo(0);
    // The next guardian restarts the components that it has taken over, and their clients are not refused.
    for name in ["fresh", "kept"] {
        let before = system.pid(name);
        before.signal(Signal::KILL).unwrap();
        assert!(name != "fresh" || TcpStream::connect(("127.0.0.1", port)).is_ok(), "refused");
        until("the next life", || {
            // The test is now the parent of the processes that the first guardian has left.
            crate::common::reap(before.pid());
            (system.incarnation(name) > 1).then_some(())
        });
        system.await_state(name, "ready");
    }
    assert_eq!(system.lines("user").len(), 1);
    assert_eq!(system.down(), Some(0));
}

#[test]
fn what_a_dead_guardian_has_left_of_a_dead_component_is_ended() {
    if !supported() {
        return;
    }
    let mut system = System::up("[component.a]\ncommand = [\"PROGRAM\", \"FOLDER/a\"]\n");
    system.await_state("a", "ready");
    until("its first line", || (!system.lines("a").is_empty()).then_some(()));
    system.guardian.kill().unwrap();
    wait(&mut system.guardian);
    let root = system.pid("a");
    // The child of the component continues in a new session.
    system.order("a", "fork");
    until("the end of the root", || (!root.is_alive()).then_some(()));
    system.guardian = system.lab.undying(["up", "system.toml"]).spawn().unwrap();
    system.await_state("a", "ready");
    let runs = |process: &ProcessId| {
        std::fs::read_link(format!("/proc/{}/exe", process.pid())).is_ok_and(|exe| exe == program())
    };
    assert_eq!(system.lab.guard.marked().into_iter().filter(runs).count(), 1);
    assert_eq!(system.lines("a").iter().filter(|line| line.starts_with("up")).count(), 2);
    assert_eq!(system.down(), Some(0));
}

#[test]
fn a_store_has_one_system_and_orders_need_one() {
    if !supported() {
        return;
    }
    let system = System::up("[component.a]\ncommand = [\"PROGRAM\", \"FOLDER/a\"]\n");
    system.await_state("a", "ready");
    let second = system.call(&["up", "system.toml"]);
    assert!(second.code == Some(3) && second.stderr.contains("has a system already: lab"), "{second:?}");
    let mut system = system;
    let guardian = ProcessId::of(Pid(system.guardian.id() as i32)).unwrap();
    // Ctrl-Z (SIGTSTP) stops neither the guardian nor the system.
    guardian.signal(Signal::TSTP).unwrap();
    assert_eq!(system.call(&["start", "a"]).code, Some(0));
    // SIGTERM to the guardian also ends the system.
    guardian.signal(Signal::TERM).unwrap();
    assert_eq!(wait(&mut system.guardian).code(), Some(0));
    assert_eq!(system.lines("a").len(), 2);
    let none = system.call(&["stop", "a"]);
    assert!(none.code == Some(3) && none.stderr.contains("no system is guarded"), "{none:?}");
    assert_eq!(system.status("a")["component"], Value::Null);
}

#[test]
fn mistakes_of_a_probe_are_found_before_anything_is_started() {
    if !supported() {
        return;
    }
    let mut system = System::up(
        "[component.a]\ncommand = [\"PROGRAM\", \"FOLDER/a\"]\n\
         [component.b]\ncommand = [\"PROGRAM\", \"FOLDER/b\"]\nready = { http = \"https://127.0.0.1/\" }\n",
    );
    assert_eq!(wait(&mut system.guardian).code(), Some(2));
    for words in ["https", "the checks on b", "system.toml:5:12"] {
        assert!(system.told(words), "{words}: {}", system.lab.told());
    }
    let checked = system.call(&["check", "system.toml"]);
    assert!(checked.code == Some(2) && checked.stderr.contains("the checks on b"), "{checked:?}");
    assert!(system.lines("a").is_empty() && system.lines("b").is_empty());
}

#[test]
fn a_service_manager_hears_of_the_system() {
    if !supported() {
        return;
    }
    let manager = std::cell::OnceCell::new();
    let system = System::up_with(
        "[component.a]\ncommand = [\"PROGRAM\", \"FOLDER/a\", \"ready\", \"delay=200\"]\nready = { notify = true }\n",
        |lab, command| {
            let path = lab.path("manager");
            let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
            socket.set_read_timeout(Some(crate::common::LIMIT)).unwrap();
            manager.set(socket).unwrap();
            command.env("NOTIFY_SOCKET", path).env("WATCHDOG_USEC", "200000");
        },
    );
    let manager = manager.get().unwrap();
    let next = || {
        let mut text = [0_u8; 512];
        let length = manager.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    let await_message = |wanted: &str| {
        let mut before = Vec::new();
        loop {
            let message = next();
            if message.contains(wanted) {
                return before;
            }
            before.push(message);
        }
    };
    let before = await_message("READY=1");
    assert!(before.iter().any(|message| message.contains("0 of 1 components are ready")), "{before:?}");
    assert_eq!(system.state("a"), "ready");
    await_message("1 of 1 components are ready");
    await_message("WATCHDOG=1");
    let guardian = Pid(system.guardian.id() as i32);
    ProcessId::of(guardian).unwrap().signal(Signal::TERM).unwrap();
    await_message("STOPPING=1");
}
