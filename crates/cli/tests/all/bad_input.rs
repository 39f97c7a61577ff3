//! Tests with faulty input: `undying` must name the fault, exit with the documented code, and change nothing.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::common::{Counter, Guarded, Lab, Said, program, supported, until};

/// Writes an image of a counter, and returns its path. With `kill`, the checkpoint also kills the counter.
fn image_of(lab: &Lab, counter: &Counter, kill: bool) -> PathBuf {
    let image = lab.path("image");
    let pid = counter.pid().to_string();
    let mut words = vec!["checkpoint", &pid, "--image", image.to_str().unwrap()];
    words.extend(kill.then_some("--kill"));
    let said = lab.say(words);
    assert_eq!(said.code, Some(0), "{said:?}");
    if kill {
        crate::common::reap(counter.pid());
    }
    image
}

fn restore(lab: &Lab, image: &Path) -> Said {
    lab.say(["restore", "--detach", image.to_str().unwrap()])
}

/// Asserts that a call failed with this code, and that its messages contain the reason and a help line.
fn assert_refused(said: &Said, code: i32, words: &[&str]) {
    assert_eq!(said.code, Some(code), "{said:?}");
    assert!(said.stderr.lines().any(|line| line.starts_with("undying: ")), "{said:?}");
    assert!(said.stderr.contains("help: "), "{said:?}");
    for word in words {
        assert!(said.stderr.contains(word), "no `{word}` in {said:?}");
    }
}

fn copy(image: &Path, to: &Path) {
    // An earlier round may have left a directory.
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(image).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn a_damaged_image_is_found_before_anything_is_restored() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let counter = lab.counter(&[]);
    let image = image_of(&lab, &counter, true);
    let bad = lab.path("bad");
    let names: Vec<_> = std::fs::read_dir(&image).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.len() >= 4, "{names:?}");
    for name in names {
        let whole = std::fs::read(image.join(&name)).unwrap();
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 0x10;
        let cut = &whole[..whole.len() / 2];
        for (what, bytes) in [("flipped", Some(flipped.as_slice())), ("cut", Some(cut)), ("gone", None)] {
            copy(&image, &bad);
            match bytes {
                Some(bytes) => std::fs::write(bad.join(&name), bytes).unwrap(),
                None => std::fs::remove_file(bad.join(&name)).unwrap(),
            }
            for said in [restore(&lab, &bad), lab.say(["verify", bad.to_str().unwrap()])] {
                let damage = said.code == Some(5);
                assert!(damage, "{what} {}: {said:?}", name.display());
                assert_refused(&said, 5, &["bad"]);
            }
            until("what was begun to end", || lab.guard.marked().is_empty().then_some(()));
            crate::common::reap(counter.pid());
        }
    }
    assert_eq!(restore(&lab, &image).code, Some(0));
    Counter { process: lab.guarded_counter().unwrap().process, ..counter }.goes_on(3);
}

#[test]
fn a_foreign_newer_or_missing_image_is_named_as_such() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let counter = lab.counter(&[]);
    let image = image_of(&lab, &counter, true);
    let commit = image.join("commit");
    let mut bytes = std::fs::read(&commit).unwrap();
    bytes[8..12].copy_from_slice(&99_u32.to_le_bytes());
    let header = crc32c::crc32c(&bytes[..28]);
    bytes[28..32].copy_from_slice(&header.to_le_bytes());
    std::fs::write(&commit, bytes).unwrap();
    assert_refused(&restore(&lab, &image), 5, &["format 99 is newer than"]);
    std::fs::write(&commit, "tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\n".repeat(9)).unwrap();
    assert_refused(&restore(&lab, &image), 5, &["is not an undying image"]);
    std::fs::remove_file(&commit).unwrap();
    assert_refused(&restore(&lab, &image), 5, &["contains no committed image"]);
    assert_refused(&restore(&lab, &lab.path("nowhere")), 5, &["there is no such file or directory"]);
    assert_refused(&lab.say(["restore", "nobody"]), 5, &["no committed image nobody", "`undying ls` lists"]);
    assert_refused(&lab.say(["restore", "nobody@7"]), 5, &["no committed image nobody"]);
    assert_refused(&lab.say(["show", "a@b"]), if lab.store().exists() { 2 } else { 5 }, &["a@b"]);
    assert!(lab.guard.marked().is_empty());
}

#[test]
fn a_program_library_or_file_that_is_gone_is_named() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let (own, library, file) = (lab.path("own-program"), lab.path("libown.so"), lab.path("data"));
    crate::common::copy_program(program(), &own);
    compile_library(&library);
    std::fs::write(&file, "content").unwrap();
    let mut setsid = Command::new("setsid");
    setsid.env("LD_PRELOAD", &library);
    let counter = lab.counter_like(&own, &["hold", file.to_str().unwrap()], &mut setsid);
    let image = image_of(&lab, &counter, true);
    for path in [&own, &library, &file] {
        // The restore finds a file that was only renamed.
        let elsewhere = lab.path("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        let aside = elsewhere.join("aside");
        std::fs::copy(path, &aside).unwrap();
        std::fs::remove_file(path).unwrap();
        assert_refused(&restore(&lab, &image), 3, &[path.to_str().unwrap()]);
        assert!(lab.guard.marked().is_empty(), "without {}: something runs", path.display());
        std::fs::copy(&aside, path).unwrap();
        std::fs::remove_dir_all(&elsewhere).unwrap();
    }
    assert_eq!(restore(&lab, &image).code, Some(0));
    counter.goes_on(3);
}

fn compile_library(library: &Path) {
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-x", "c", "-", "-o"]).arg(library).stdin(Stdio::piped());
    let mut compiler = compiler.spawn().unwrap();
    let mut source = compiler.stdin.take().unwrap();
    std::io::Write::write_all(&mut source, b"int undying_own_library(void) { return 1; }\n").unwrap();
    drop(source);
    assert!(compiler.wait().unwrap().success());
}

#[test]
fn a_pid_that_is_taken_is_named_and_left_alone() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let counter = lab.counter(&[]);
    let image = image_of(&lab, &counter, false);
    let pid = counter.pid();
    for how in ["same", "auto"] {
        let said = lab.say(["restore", "--detach", "--pid", how, image.to_str().unwrap()]);
        assert_refused(&said, 3, &[&format!("pid {pid} is taken")]);
    }
    counter.goes_on(3);
    let said = lab.say(["checkpoint", &pid.to_string(), "--image", image.to_str().unwrap()]);
    assert_refused(&said, 3, &["exists already"]);
}

#[test]
fn a_pid_that_nobody_reaps_is_named_with_its_parent() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut command = Command::new(program());
    let mut child = lab.detached(command.arg(lab.path("count"))).spawn().unwrap();
    let counter = until("the counter", || lab.guarded_counter());
    counter.goes_on(1);
    let (image, pid) = (lab.path("image"), child.id().to_string());
    let said = lab.say(["checkpoint", &pid, "--kill", "--image", image.to_str().unwrap()]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let said = lab.say(["restore", "--detach", image.to_str().unwrap()]);
    let parent = format!("its parent, pid {}, reaps it", std::process::id());
    assert_refused(&said, 3, &[&format!("pid {} has ended", child.id()), &parent]);
    child.wait().unwrap();
    assert_eq!(lab.say(["restore", "--detach", image.to_str().unwrap()]).code, Some(0));
}

#[test]
fn a_full_disk_costs_the_checkpoint_and_nothing_else() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let Some(small) = small_disk(&lab) else { return };
    let counter = lab.counter(&[]);
    let image = small.path.join("image");
    let pid = counter.pid().to_string();
    let said = lab.say(["checkpoint", &pid, "--image", image.to_str().unwrap()]);
    assert_refused(&said, 125, &["No space left on device"]);
    assert_eq!(std::fs::read_dir(&small.path).unwrap().count(), 0, "something is left behind");
    counter.goes_on(3);
    let said = lab.say(["checkpoint", &pid, "--kill", "--image", image.to_str().unwrap()]);
    assert_refused(&said, 125, &["No space left on device"]);
    counter.goes_on(3);
}

/// A tmpfs that is unmounted on drop.
struct SmallDisk {
    path: PathBuf,
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

fn small_disk(lab: &Lab) -> Option<SmallDisk> {
    let path = lab.path("small");
    std::fs::create_dir(&path).unwrap();
    let status =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k,mode=0700", "none"]).arg(&path).status();
    if !status.is_ok_and(|status| status.success()) {
        println!("unsupported: mounting a tmpfs");
        return None;
    }
    Some(SmallDisk { path })
}

/// The uid of an account that owns nothing.
const NOBODY: u32 = 65_534;

#[test]
fn another_users_process_is_refused() {
    if !supported() {
        return;
    }
    use std::os::unix::process::CommandExt;
    let lab = Lab::new();
    let counter = lab.counter(&[]);
    let public = tempfile::TempDir::new().unwrap();
    std::fs::set_permissions(public.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let binary = public.path().join("undying");
    crate::common::copy_program(env!("CARGO_BIN_EXE_undying"), &binary);
    for verb in ["checkpoint", "run"] {
        let pid = counter.pid().to_string();
        let mut command = Command::new(&binary);
        command.arg(verb).arg("--store").arg(public.path().join("store"));
        match verb {
            "run" => command.args(["--restart", "never", "--every", "10ms", "--adopt", &pid]),
            _ => command.args([&pid, "--image"]).arg(public.path().join("image")),
        };
        lab.detached(&mut command);
        command.current_dir(public.path()).uid(NOBODY).gid(NOBODY);
        assert_refused(&lab.call(&mut command), 4, &["CAP_CHECKPOINT_RESTORE", "setcap"]);
        counter.goes_on(3);
    }
}

#[test]
fn a_feature_that_is_forced_off_is_replaced_or_named() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let counter = lab.counter(&[]);
    let pid = counter.pid().to_string();
    for required in ["ptrace", "pidfd", "process-memory", "kcmp", "set-tid", "proc-children"] {
        let image = lab.path("never");
        let mut command = lab.undying(["checkpoint", &pid, "--image", image.to_str().unwrap()]);
        let said = lab.call(command.env("UNDYING_FEATURES_OFF", required));
        assert_refused(&said, 4, &[&format!("feature {required} is missing")]);
        assert!(!image.exists());
        let said = lab.call(lab.undying(["doctor"]).env("UNDYING_FEATURES_OFF", required));
        assert_eq!(said.code, Some(4), "{said:?}");
        assert!(said.stdout.contains("forced off"), "{said:?}");
    }
    for optional in ["pagemap-scan", "io-uring", "direct-io", "pagemap-scan,io-uring,direct-io"] {
        let image = lab.path(&format!("image-{optional}"));
        let mut command = lab.undying(["checkpoint", &pid, "--image", image.to_str().unwrap()]);
        let said = lab.call(command.env("UNDYING_FEATURES_OFF", optional));
        assert_eq!(said.code, Some(0), "{optional}: {said:?}");
        assert_eq!(lab.say(["verify", image.to_str().unwrap()]).code, Some(0));
    }
    counter.goes_on(3);
}

#[test]
fn what_is_not_supported_is_refused_by_name_and_nothing_is_changed() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    // The other end of this pipe belongs to the test.
    let mut command = Command::new(program());
    lab.detached(command.arg(lab.path("count"))).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let counter = until("the counter", || lab.guarded_counter());
    counter.goes_on(1);
    let pid = counter.pid().to_string();
    let image = lab.path("image");
    let said = lab.say(["checkpoint", &pid, "--image", image.to_str().unwrap()]);
    assert_refused(&said, 3, &["nothing was changed", "fd 1", "pipe"]);
    assert!(!image.exists());
    let report = lab.json(&["preflight", &pid]);
    assert_eq!(report["ok"], false);
    let obstacle = &report["obstacles"][0];
    assert_eq!(obstacle["pid"], counter.pid().get());
    for key in ["what", "where", "why", "fix"] {
        assert!(obstacle[key].is_string(), "{key} in {obstacle}");
    }
    assert_eq!(lab.say(["preflight", &pid]).code, Some(3));
    counter.goes_on(3);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_program_without_a_c_library_is_refused_by_name() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let (source, own) = (lab.path("bare.c"), lab.path("bare"));
    std::fs::write(&source, "void _start(void) { for (;;) __builtin_ia32_pause(); }\n").unwrap();
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-O1", "-static", "-nostdlib", "-o"]).arg(&own).arg(&source);
    assert!(compiler.status().unwrap().success());
    let mut child = lab.detached(&mut Command::new(&own)).spawn().unwrap();
    let pid = child.id().to_string();
    let image = lab.path("image");
    let said = lab.say(["checkpoint", &pid, "--image", image.to_str().unwrap()]);
    assert_refused(&said, 3, &["nothing was changed", &pid, "syscall; ret", "static program"]);
    assert_eq!(lab.say(["preflight", &pid]).code, Some(3));
    assert!(child.try_wait().unwrap().is_none(), "it runs on");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_tree_that_holds_undying_itself_is_refused() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let own = std::process::id().to_string();
    for words in [
        vec!["checkpoint", &own, "--image", "image"],
        vec!["run", "--adopt", &own],
        vec!["checkpoint", "1", "--image", "image"],
    ] {
        assert_refused(&lab.say(&words), 3, &["contains this undying"]);
    }
}

#[test]
fn a_kernel_thread_is_called_so() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    // Field 9 of proc_pid_stat(5). Field 3 is the first field after the name.
    let flags = |pid: &String| -> Option<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(9 - 3)?.parse().ok()
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let Some(pid) = pids.find(|pid| flags(pid).is_some_and(|flags| flags & 0x0020_0000 != 0)) else {
        println!("unsupported: kernel threads in this PID namespace");
        return;
    };
    assert_refused(&lab.say(["checkpoint", &pid, "--image", "image"]), 3, &["is a kernel thread"]);
    assert_refused(&lab.say(["run", "--adopt", &pid]), 3, &["is a kernel thread"]);
    let said = lab.say(["preflight", &pid]);
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.stdout.contains("kernel thread: it runs no program"), "{said:?}");
}

#[test]
fn a_guarded_process_is_refused_with_the_name_of_its_guardian() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let guarded = Guarded::run(&lab, &[], "until [ -e stop ]; do sleep 0.02; done");
    guarded.await_checkpoints(2);
    let status = guarded.status();
    if status["tracker"] != "pagemap-scan" {
        println!("unsupported: write tracking with userfaultfd");
        assert_eq!(guarded.end(), 0);
        return;
    }
    let pid = status["pid"].to_string();
    let wanted = [format!("guardian, pid {}", status["guardian"]), "store job COPY".to_owned()];
    let said = lab.say(["checkpoint", &pid, "--image", lab.path("image").to_str().unwrap()]);
    let report = lab.json(&["preflight", &pid]);
    let second = lab.say(["run", "--name", "second", "--adopt", &pid]);
    for wanted in wanted {
        assert_refused(&said, 3, &[&wanted]);
        assert_refused(&second, 3, &[&wanted]);
        assert!(report["obstacles"].to_string().contains(&wanted), "{wanted} in {report}");
    }
    assert!(!report.to_string().contains("garbage collectors"), "{report}");
    assert_eq!(guarded.end(), 0);
}

#[test]
fn a_process_that_is_not_there_is_named() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    for verb in ["checkpoint", "preflight"] {
        let mut words = vec![verb, "4194304"];
        words.extend((verb == "checkpoint").then_some(["--image", "image"]).into_iter().flatten());
        assert_refused(&lab.say(&words), 3, &["no process 4194304"]);
    }
    assert_refused(&lab.say(["run", "--adopt", "4194304"]), 3, &["no process 4194304"]);
    assert_refused(&lab.say(["run", "--", "/no/such/program"]), 127, &["/no/such/program"]);
}

#[test]
fn subjects_that_exit_exec_or_fork_meanwhile_are_whole_or_named() {
    if !supported() {
        return;
    }
    for mode in ["exec", "fork"] {
        let lab = Lab::new();
        let counter = lab.counter(&[mode, "3"]);
        let mut taken = 0;
        for round in 0..testkit::rounds(15, 150) {
            let image = lab.path(&format!("image-{round}"));
            let pid = counter.pid().to_string();
            let said = lab.say(["checkpoint", &pid, "--image", image.to_str().unwrap()]);
            match said.code {
                Some(0) => taken += 1,
                _ => assert_refused(&said, 3, &["pid"]),
            }
            counter.goes_on(2);
        }
        assert!(taken > 0, "{mode}: no checkpoint could be taken");
    }
    for round in 0..testkit::rounds(15, 150) {
        let lab = Lab::new();
        let mut command = Command::new(program());
        command.arg(lab.path("count")).args(["exit", &(round * 5).to_string()]);
        let mut child = lab.detached(&mut command).spawn().unwrap();
        let (image, pid) = (lab.path("image"), child.id().to_string());
        let said = lab.say(["checkpoint", &pid, "--image", image.to_str().unwrap()]);
        match said.code {
            Some(0) => assert_eq!(lab.say(["verify", image.to_str().unwrap()]).code, Some(0)),
            _ => assert_refused(&said, 3, &[&pid]),
        }
        assert_eq!(crate::common::wait(&mut child).code(), Some(0), "its status is its own");
    }
}

#[test]
fn a_namespace_of_the_next_children_is_refused_with_advice_that_fits() {
    const NEW_TIME: &str = "import ctypes, time
print(ctypes.CDLL(None).unshare(0x80), flush=True)
time.sleep(600)";
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut child = lab.detached(Command::new("python3").args(["-c", NEW_TIME])).spawn().unwrap();
    let said = until("the namespace", || {
        std::fs::read_to_string(lab.path("stdout")).ok().filter(|it| !it.is_empty())
    });
    if said.trim() == "0" {
        let said = lab.say(["preflight", &child.id().to_string()]);
        let words = ["time (of its children) namespace", "for its next children"];
        assert!(said.code == Some(3) && words.iter().all(|word| said.stdout.contains(word)), "{said:?}");
        assert!(!said.stdout.contains("nsenter"), "{said:?}");
    } else {
        println!("unsupported: a time namespace");
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_store_that_others_can_read_is_refused() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    std::fs::create_dir(lab.store()).unwrap();
    std::fs::set_permissions(lab.store(), PermissionsExt::from_mode(0o755)).unwrap();
    assert_refused(&lab.say(["run", "--", "true"]), 125, &["can be read by other users", "chmod 0700"]);
    assert_refused(&lab.say(["ls"]), 125, &["can be read by other users"]);
}

#[test]
fn a_run_that_cannot_checkpoint_goes_on_and_says_so_once() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let Some(small) = small_disk(&lab) else { return };
    let store = small.path.join("store");
    let words: Vec<_> = ["run", "--name", "job", "--every", "10ms", "--store"].map(String::from).into();
    let mut command = Command::new(env!("CARGO_BIN_EXE_undying"));
    command.args(words).arg(&store).arg("--").args(lab.counter_words(&[]));
    let mut guardian = lab.detached(&mut command).spawn().unwrap();
    let counter = until("the counter", || lab.guarded_counter());
    until("refusals in the status", || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_undying"));
        let said = lab.call(command.args(["status", "job", "--json", "--store"]).arg(&store));
        let status: serde_json::Value = serde_json::from_str(&said.stdout).ok()?;
        (status[0]["refusals"][0]["count"].as_u64()? > 2).then_some(())
    });
    counter.goes_on(3);
    let said = lab.told();
    assert_eq!(said.matches("No space left on device").count(), 1, "{said}");
    counter.process.signal(Signal::TERM).unwrap();
    assert_eq!(crate::common::wait(&mut guardian).code(), Some(143));
}
