//! Tests of `undying run`: a subject (a protected process tree) that dies is restored with the same pid. The restored
//! state must not be older than the last checkpoint.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Counter, Lab, holders_of, supported, until, wait};

/// Maximum number of poisonings. A poisoning is repeated until a checkpoint contains the poison, because checkpoints
/// may be late on a loaded machine.
const POISONINGS_MAX: usize = 10;

fn run(lab: &Lab, options: &[&str], counter: &[&str]) -> std::process::Child {
    // The counters record their progress in files, and a restart must not roll back these files.
    let mut words: Vec<String> = ["run", "--name", "job", "--files", "keep"].map(str::to_owned).to_vec();
    words.extend(options.iter().map(|word| (*word).to_owned()));
    words.push("--".to_owned());
    words.extend(lab.counter_words(counter));
    lab.undying(words).spawn().unwrap()
}

fn wait_for_checkpoints(lab: &Lab, count: u64) {
    until("checkpoints", || {
        let said = lab.say(["status", "job", "--json"]);
        // The guardian may not have written its first status yet.
        let status: serde_json::Value = serde_json::from_str(&said.stdout).ok()?;
        (status[0]["checkpoints"].as_u64()? >= count).then_some(())
    });
}

fn end(lab: &Lab, mut guardian: std::process::Child) -> i32 {
    let status = if let Some(counter) = lab.guarded_counter() {
        counter.process.signal(Signal::TERM).unwrap();
        wait(&mut guardian)
    } else {
        wait(&mut guardian)
    };
    status.code().unwrap()
}

/// Counts that were read, each with a time at which the count was already reached.
struct Sampler {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: std::thread::JoinHandle<Vec<(SystemTime, u64)>>,
}

impl Sampler {
    fn start(counter: Counter) -> Self {
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stopped = std::sync::Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut seen = Vec::new();
            while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
                if let Some(count) = counter.read() {
                    seen.push((SystemTime::now(), count));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            seen
        });
        Self { stop, thread }
    }

    fn finish(self) -> Vec<(SystemTime, u64)> {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Returns the sequence number of the newest committed checkpoint.
fn newest(lab: &Lab) -> u64 {
    let rows = lab.json(&["ls", "job"]);
    let row = rows.as_array().unwrap().iter().rfind(|row| row["committed"] == true).unwrap().clone();
    row["seq"].as_u64().unwrap()
}

/// Returns the sequence number of the last restored checkpoint, and a time before the subject was stopped for this
/// checkpoint.
fn restored(lab: &Lab, restarts: usize) -> (u64, SystemTime) {
    until("the event of the restore", || {
        let said = lab.say(["events", "job", "--json"]);
        let rows: Vec<Value> = said.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of = |kind: &str| rows.iter().filter(|row| row["event"] == kind).cloned().collect::<Vec<_>>();
        let restores = of("restored");
        let last = restores.last().filter(|_| restores.len() == restarts)?;
        let checkpoint = of("checkpoint").into_iter().find(|row| row["seq"] == last["seq"])?;
        let time: jiff::Timestamp = checkpoint["time"].as_str()?.parse().unwrap();
        Some((last["seq"].as_u64()?, SystemTime::from(time)))
    })
}

#[test]
fn a_subject_killed_at_random_moments_comes_back_no_older_than_its_last_checkpoint() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut random = testkit::seeded("killed subject");
    let guardian =
        run(&lab, &["--every", "100ms", "--restart", "on-failure", "--max-restarts", "1000/1m"], &[]);
    wait_for_checkpoints(&lab, 2);
    let first = lab.guarded_counter().unwrap();
    for round in 0..testkit::rounds(12, 200) {
        let sampler = Sampler::start(first.clone());
        std::thread::sleep(testkit::moment(&mut random, Duration::from_millis(350)));
        let committed = newest(&lab);
        let killed = lab.guarded_counter().unwrap();
        assert_eq!(killed.pid(), first.pid(), "round {round}");
        killed.process.signal(Signal::KILL).unwrap();
        let back = until("the subject", || lab.guarded_counter().filter(|now| now.process != killed.process));
        assert_eq!(back.pid(), first.pid(), "round {round}");
        let seen = sampler.finish();
        let (sequence, time) = restored(&lab, round + 1);
        assert!(
            sequence >= committed,
            "round {round}: {sequence} is older than the committed {committed}\n{}",
            lab.say(["events", "job"]).stdout
        );
        // The subject had written this count before it was stopped for the checkpoint.
        let at_least = seen.iter().rfind(|(seen, _)| *seen <= time).map_or(0, |(_, count)| *count);
        back.goes_on(3);
        let count = back.read().unwrap();
        assert!(count >= at_least, "round {round}: {count} is older than checkpoint {sequence}, {at_least}");
    }
    let status = lab.json(&["status", "job"]);
    assert_eq!(status[0]["state"], "running");
    assert_eq!(status[0]["restarts"], testkit::rounds(12, 200));
    assert_eq!(status[0]["last_death"]["signal"], 9);
    assert_eq!(end(&lab, guardian), 128 + 15);
    assert_eq!(lab.json(&["status", "job"])[0]["state"], "ended");
}

#[test]
fn a_subject_without_checkpoints_starts_afresh_and_its_status_is_ours() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let guardian = run(&lab, &["--every", "1h"], &["exit", "2000"]);
    let counter = until("the counter", || lab.guarded_counter());
    counter.goes_on(5);
    counter.process.signal(Signal::SEGV).unwrap();
    until("another", || lab.guarded_counter().filter(|now| now.process != counter.process));
    assert_eq!(end_by_itself(guardian), 0);
    let status = lab.json(&["status", "job"]);
    assert_eq!(status[0]["restarts"], 1);
    assert_eq!(status[0]["last_death"]["exit"], 0);
}

fn end_by_itself(mut guardian: std::process::Child) -> i32 {
    wait(&mut guardian).code().unwrap()
}

#[test]
fn policies_decide_what_follows_a_death() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let never = run(&lab, &["--restart", "never"], &["fail", "10"]);
    assert_eq!(end_by_itself(never), 3);
    let lab = Lab::new();
    let always = run(&lab, &["--restart", "always", "--max-restarts", "2/1m"], &["exit", "10"]);
    assert_eq!(end_by_itself(always), 0);
    assert_eq!(lab.json(&["status", "job"])[0]["state"], "gave-up");
    assert_eq!(lab.json(&["status", "job"])[0]["restarts"], 2);
    let lab = Lab::new();
    let failing = run(&lab, &["--max-restarts", "3/1m"], &["fail", "10"]);
    assert_eq!(end_by_itself(failing), 3);
    // The second exit with the same code is the end.
    assert_eq!(lab.json(&["status", "job"])[0]["state"], "ended");
    assert_eq!(lab.json(&["status", "job"])[0]["restarts"], 1);
}

#[test]
fn a_checkpoint_that_holds_the_reason_of_death_is_passed_over() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let poison = lab.path("poison");
    let guardian = run(
        &lab,
        &["--every", "20ms", "--keep", "50", "--max-restarts", "100/1m"],
        &["trap", poison.to_str().unwrap()],
    );
    wait_for_checkpoints(&lab, 5);
    let counter = lab.guarded_counter().unwrap();
    // The test needs a checkpoint that was committed between the poisoning and the death.
    let held_poison = (0..POISONINGS_MAX).any(|_| poison_and_wait(&lab, &poison));
    assert!(held_poison);
    let now = lab.guarded_counter().unwrap();
    assert_eq!(now.pid(), counter.pid());
    now.goes_on(200);
    assert_eq!(end(&lab, guardian), 128 + 15);
}

/// Poisons the counter until it dies, and waits for an incarnation (restored program) without poison. Returns true if a
/// checkpoint was skipped.
fn poison_and_wait(lab: &Lab, poison: &std::path::Path) -> bool {
    let restarts = || lab.json(&["status", "job"])[0]["restarts"].as_u64();
    let before = restarts();
    std::fs::write(poison, "").unwrap();
    until("a death", || (restarts() > before).then_some(()));
    std::fs::remove_file(poison).unwrap();
    until("a life without poison", || {
        let back = lab.guarded_counter()?;
        std::thread::sleep(Duration::from_millis(500));
        (lab.guarded_counter()?.process == back.process).then_some(())
    });
    lab.told().contains("led to another death")
}

#[test]
fn what_a_dead_root_has_left_is_ended_before_it_comes_back() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let guardian = run(&lab, &["--every", "50ms"], &["orphan"]);
    wait_for_checkpoints(&lab, 2);
    let before = lab.guarded_counter().unwrap();
    let children = testkit::descendants(before.process);
    assert_eq!(children.len(), 1);
    before.process.signal(Signal::KILL).unwrap();
    // For a moment, the child is without a parent and looks like a root.
    let is_back = |now: &Counter| now.process != before.process && now.pid() == before.pid();
    let back = until("the subject", || lab.guarded_counter().filter(is_back));
    let again = until("its child", || testkit::descendants(back.process).first().copied());
    assert_eq!(again.pid(), children[0].pid(), "the child has its number again");
    assert!(!children[0].is_alive());
    assert_eq!(end(&lab, guardian), 128 + 15);
}

#[test]
fn signals_to_the_guardian_are_meant_for_the_subject() {
    if !supported() {
        return;
    }
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        // A shell without job control may start this test with ignored signals. Started programs inherit ignored
        // signals.
        if ignored_here() >> (signal.as_raw() - 1) & 1 == 1 {
            println!("unsupported: {signal:?}, which the caller of this test ignores");
            continue;
        }
        let lab = Lab::new();
        let mut guardian = run(&lab, &["--every", "50ms", "--restart", "always"], &[]);
        wait_for_checkpoints(&lab, 1);
        let process = testkit::ProcessId::of(model::Pid(guardian.id() as i32)).unwrap();
        process.signal(signal).unwrap();
        assert_eq!(wait(&mut guardian).code(), Some(code));
        assert!(lab.guarded_counter().is_none());
    }
}

#[test]
fn a_subject_whose_guardian_was_killed_is_adopted_and_comes_back() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut guardian = run(&lab, &["--every", "50ms"], &[]);
    wait_for_checkpoints(&lab, 2);
    let counter = lab.guarded_counter().unwrap();
    guardian.kill().unwrap();
    wait(&mut guardian);
    counter.goes_on(20);
    assert_eq!(lab.json(&["status", "job"])[0]["state"], "unprotected");
    let pid = counter.pid().to_string();
    let mut adopter = lab.undying(["run", "--adopt", &pid, "--every", "50ms"]).spawn().unwrap();
    until("the adopter", || (lab.json(&["status", "job"])[0]["state"] == "running").then_some(()));
    wait_for_checkpoints(&lab, 2);
    let environment = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    let known = environment.split('\0').find_map(|entry| entry.strip_prefix("UNDYING_SOCKET=@")).unwrap();
    let known = SocketAddr::from_abstract_name(known).unwrap();
    assert!(UnixDatagram::bind_addr(&known).is_err(), "the adopter has no socket where the subject asks");
    counter.process.signal(Signal::KILL).unwrap();
    let back = until("the subject", || {
        // Orphans become children of this test. The guardian waits until their pids are free.
        crate::common::reap(counter.pid());
        lab.guarded_counter().filter(|now| now.process != counter.process)
    });
    assert_eq!(back.pid(), counter.pid());
    assert_eq!(back.process.parent().map(|pid| pid.get() as u32), Some(adopter.id()));
    back.goes_on(20);
    back.process.signal(Signal::TERM).unwrap();
    assert_eq!(wait(&mut adopter).code(), Some(143));
}

#[test]
fn a_guardian_binds_no_name_that_an_adopted_process_chooses() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    // The name belongs to a service of another user that was not started yet.
    let foreign = format!("org.example.service-{}", std::process::id());
    let environment = format!("UNDYING_SOCKET=@{foreign}");
    let mut stranger = Command::new("env").args([&environment, "sleep", "60"]).spawn().unwrap();
    let pid = stranger.id().to_string();
    let words = ["run", "--name", "stranger", "--adopt", &pid, "--every", "1h"];
    let mut adopter = lab.undying(words).spawn().unwrap();
    until("the adopter", || {
        let said = lab.say(["status", "stranger", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&said.stdout).ok()?;
        (status[0]["state"] == "running").then_some(())
    });
    let service = SocketAddr::from_abstract_name(&foreign).unwrap();
    assert!(UnixDatagram::bind_addr(&service).is_ok(), "the guardian has the name of another service");
    stranger.kill().unwrap();
    wait(&mut stranger);
    adopter.kill().unwrap();
    wait(&mut adopter);
}

#[test]
fn two_guardians_do_not_share_a_name() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let guardian = run(&lab, &["--every", "1h"], &[]);
    until("the counter", || lab.guarded_counter());
    let second = lab.say(["run", "--name", "job", "--", "true"]);
    assert_eq!(second.code, Some(3), "{second:?}");
    assert!(second.stderr.contains("job is already guarded by another undying process (pid"), "{second:?}");
    assert_eq!(end(&lab, guardian), 143);
}

/// Reports whether all threads are stopped. On another CPU, a thread runs for several microseconds after the stop
/// signal.
fn stands_still(process: &testkit::ProcessId) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{}/task", process.pid())).unwrap();
    let status = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("status"));
    threads.flatten().all(|thread| status(thread).is_ok_and(|text| text.contains("State:\tT (stopped)")))
}

#[test]
fn a_stopped_guardian_does_not_stop_its_subject() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut random = testkit::seeded("stopped guardian");
    let guardian = run(&lab, &["--every", "200ms"], &[]);
    wait_for_checkpoints(&lab, 1);
    let counter = lab.guarded_counter().unwrap();
    let process = testkit::ProcessId::of(model::Pid(guardian.id() as i32)).unwrap();
    let mut stood_inside_a_pause = 0;
    for _ in 0..testkit::rounds(5, 50) {
        std::thread::sleep(testkit::moment(&mut random, Duration::from_millis(300)));
        process.signal(Signal::STOP).unwrap();
        until("the guardian to stand still", || stands_still(&process).then_some(()));
        // If the guardian is stopped in a pause, the subject stays stopped with it. This case cannot be avoided.
        if counter.status("TracerPid") == "0" {
            counter.goes_on(5);
        } else {
            stood_inside_a_pause += 1;
        }
        process.signal(Signal::CONT).unwrap();
        counter.goes_on(5);
    }
    println!("stopped inside a pause: {stood_inside_a_pause}");
    assert_eq!(end(&lab, guardian), 143);
}

/// A SIGCONT discards an earlier SIGTSTP, at any moment. As without `undying`, the program then goes on.
#[test]
fn a_guardian_that_is_stopped_and_continued_at_once_goes_on() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut random = testkit::seeded("stopped and continued");
    let guardian = run(&lab, &["--every", "200ms"], &[]);
    wait_for_checkpoints(&lab, 1);
    let counter = lab.guarded_counter().unwrap();
    let process = testkit::ProcessId::of(model::Pid(guardian.id() as i32)).unwrap();
    for _ in 0..testkit::rounds(150, 2000) {
        process.signal(Signal::TSTP).unwrap();
        let (begun, delay) = (Instant::now(), testkit::moment(&mut random, Duration::from_micros(200)));
        while begun.elapsed() < delay {}
        process.signal(Signal::CONT).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        until("the guardian to go on", || (!stands_still(&process)).then_some(()));
    }
    counter.goes_on(5);
    assert_eq!(end(&lab, guardian), 143);
}

/// The bits of SIGPIPE and SIGXFSZ in a signal mask.
const OF_WRITES: u64 = 1 << 12 | 1 << 24;

/// Maximum time until `--compress` has compressed segments on a loaded machine. Its thread yields to all other threads.
const COLD_AFTER_MAX: Duration = Duration::from_secs(120);

#[test]
fn a_subject_comes_back_from_a_log_whose_cold_segments_are_compressed() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let guardian =
        run(&lab, &["--every", "1s", "--compress", "zstd", "--compress-after", "5s"], &["cold", "64"]);
    wait_for_checkpoints(&lab, 1);
    let log = lab.store().join("job/log");
    let bytes = |kind: &str| {
        let entries = std::fs::read_dir(&log).unwrap().map(|entry| entry.unwrap());
        let of_kind = entries.filter(|entry| entry.path().extension().is_some_and(|found| found == kind));
        // A file may be removed between the listing and the read of its size.
        of_kind.filter_map(|entry| entry.metadata().ok()).map(|file| file.len()).collect::<Vec<_>>()
    };
    let before: u64 = bytes("seg").iter().sum();
    let begun = Instant::now();
    while bytes("zstd").len() < 3 {
        assert!(begun.elapsed() < COLD_AFTER_MAX, "nothing was compressed: {:?}", bytes("seg"));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(begun.elapsed() > Duration::from_secs(3), "compressed after {:?}", begun.elapsed());
    wait_for_checkpoints(&lab, lab.json(&["status", "job"])[0]["checkpoints"].as_u64().unwrap() + 2);
    let after: u64 = bytes("seg").iter().chain(&bytes("zstd")).sum();
    assert!(after < before, "{after} bytes instead of {before}");
    let counter = lab.guarded_counter().unwrap();
    counter.goes_on(20);
    counter.process.signal(Signal::KILL).unwrap();
    let back = until("the subject", || lab.guarded_counter().filter(|now| now.process != counter.process));
    // The counter checks every page of the compressed part once.
    back.goes_on(64 * 256 / 16);
    assert_eq!(lab.say(["verify", "job"]).code, Some(0));
    assert_eq!(end(&lab, guardian), 143);
}

/// Returns the signals of `OF_WRITES` that started programs ignore. The standard library resets SIGPIPE to its default.
fn handed_on() -> u64 {
    ignored_here() & 1 << 24
}

/// Returns the signals that this test ignores. Started programs inherit these signals.
fn ignored_here() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

fn ignored(counter: &Counter) -> u64 {
    u64::from_str_radix(&counter.status("SigIgn"), 16).unwrap()
}

#[test]
fn a_guardian_whose_terminal_is_gone_goes_on() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let mut line = ["run", "--name", "job", "--every", "50ms", "--"].map(str::to_owned).to_vec();
    line.extend(lab.counter_words(&[]));
    let mut command = lab.undying(line);
    let guardian = command.stdout(writer.try_clone().unwrap()).stderr(writer).spawn().unwrap();
    drop(command);
    wait_for_checkpoints(&lab, 2);
    drop(reader);
    let first = lab.guarded_counter().unwrap();
    assert_eq!(ignored(&first) & OF_WRITES, handed_on(), "the subject has what it was given");
    first.process.signal(Signal::KILL).unwrap();
    let back = until("the subject", || lab.guarded_counter().filter(|now| now.process != first.process));
    back.goes_on(20);
    assert_eq!(ignored(&back) & OF_WRITES, handed_on(), "and has it again");
    assert_eq!(end(&lab, guardian), 143);
}

#[test]
fn a_guardian_that_may_not_write_large_files_goes_on_without_checkpoints() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let line: Vec<String> = lab.counter_words(&[]);
    let script = r#"ulimit -f 64; exec "$0" --store "$1" run --name job --every 50ms -- "$2" "$3""#;
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_undying")]).arg(lab.store()).args(line);
    let guardian = lab.detached(&mut command).spawn().unwrap();
    let said = until("a word about it", || {
        let said = std::fs::read_to_string(lab.path("stderr")).ok()?;
        // The message is written in several pieces.
        said.lines().any(|line| line.contains("no checkpoint: ") && line.contains("large")).then_some(said)
    });
    assert!(said.contains("File too large"), "{said}");
    let counter = lab.guarded_counter().unwrap();
    counter.goes_on(100);
    assert_eq!(ignored(&counter) & OF_WRITES, handed_on(), "the subject has what it was given");
    assert_eq!(end(&lab, guardian), 143);
}

/// Returns the processor time of a process.
fn cpu_time(process: testkit::ProcessId) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

/// The holders keep descriptors for more listeners than the limit allows descriptors.
#[test]
fn helpers_sleep_and_end_although_few_descriptors_are_allowed() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let line: Vec<String> = lab.counter_words(&[]);
    let script = r#"ulimit -n 200; exec "$0" --store "$1" run --name job --every 50ms -- "$2" "$3""#;
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_undying")]).arg(lab.store()).args(line);
    let guardian = lab.detached(&mut command).spawn().unwrap();
    wait_for_checkpoints(&lab, 1);
    let holders = holders_of(testkit::ProcessId::of(model::Pid(guardian.id() as i32)).unwrap());
    let spent = || holders.iter().map(|holder| cpu_time(*holder)).sum::<Duration>();
    let before = spent();
    std::thread::sleep(Duration::from_millis(500));
    let spent = spent() - before;
    assert!(spent < Duration::from_millis(100), "{spent:?} of processor time in half a second");
    assert_eq!(end(&lab, guardian), 143);
    until("the end of the holders", || holders.iter().all(|holder| !holder.is_alive()).then_some(()));
}
