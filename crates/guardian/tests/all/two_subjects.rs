//! Two subjects under one guardian. Each subject is killed often, at random moments, while the other subject
//! continues.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use fastrand::Rng;
use guardian::{
    ChangedFiles, Guarded, Host, RestartLimit, RunEvent, RunRequest, StoreLocation, SubjectState,
    SubjectStatus,
};
use model::Pid;
use tempfile::TempDir;
use testkit::{ProcessId, moment, rounds, seeded, until};
use undying_guardian as guardian;

const NAMES: [&str; 2] = ["one", "other"];
/// Time between two checkpoints.
const EVERY: Duration = Duration::from_millis(25);
/// Maximum time from a restore of a subject to its next death. Some deaths happen before the first checkpoint after the
/// restore.
const INCARNATION_MAX: Duration = Duration::from_millis(180);
/// Time limit of a restore, even on a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);
const KILL: rustix::process::Signal = rustix::process::Signal::KILL;
const TERM: rustix::process::Signal = rustix::process::Signal::TERM;

/// Returns the number of deaths of each subject.
fn kills() -> usize {
    rounds(6, 100)
}

pub(crate) fn two_subjects_survive_each_other() {
    let mut random = seeded("two_subjects");
    let folder = TempDir::with_prefix_in("undying-host-", env!("CARGO_TARGET_TMPDIR")).unwrap();
    let lab = Lab { program: compile(), folder };
    // Opens the descriptors that the process opens only once and keeps.
    let _ = guardian::doctor(&lab.store());
    let before = Held::now();
    let begun = Instant::now();
    let kills = lab.run(&mut random);
    println!("{} deaths in {:.1} s", kills.len(), begun.elapsed().as_secs_f64());
    for name in NAMES {
        lab.judge(name);
    }
    // The threads of the storage end shortly after their last task.
    let end = Instant::now() + LIMIT;
    while Held::now() != before && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(Held::now(), before, "the guardian holds more than before");
}

/// The descriptors, threads and children of this process.
#[derive(PartialEq, Eq, Debug)]
struct Held {
    descriptors: usize,
    threads: Vec<String>,
    children: String,
}

impl Held {
    fn now() -> Self {
        let threads = std::fs::read_dir("/proc/self/task").unwrap();
        let name = |thread: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(thread.unwrap().path().join("comm")).unwrap().trim().to_owned()
        };
        let threads: Vec<String> = threads.map(name).collect();
        let children = std::fs::read_to_string(format!("/proc/self/task/{}/children", std::process::id()));
        Self {
            descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
            threads,
            children: children.unwrap(),
        }
    }
}

struct Lab {
    folder: TempDir,
    program: PathBuf,
}

/// The reports that the killer of a subject receives.
#[derive(Debug)]
enum News {
    Back(Pid),
    /// The subject died for another reason, or was started from its beginning.
    Wrong,
}

impl Lab {
    /// Guards both subjects until each subject was killed often enough.
    fn run(&self, random: &mut Rng) -> Vec<Duration> {
        let mut host = Host::new().unwrap();
        let ids = NAMES.map(|name| host.add(self.request(name)));
        let (senders, receivers): (Vec<Sender<News>>, Vec<Receiver<News>>) =
            NAMES.map(|_| mpsc::channel()).into_iter().unzip();
        let taken = std::thread::scope(|scope| {
            let killers: Vec<_> = NAMES
                .into_iter()
                .zip(receivers)
                .map(|(name, news)| {
                    let random = random.fork();
                    scope.spawn(move || self.kill(name, &news, random))
                })
                .collect();
            let outcomes = host.run(&mut |name, event| {
                let place = NAMES.iter().position(|known| *known == name).unwrap();
                // A killer that has ended does not receive the report.
                news_of(event).map(|news| senders[place].send(news));
            });
            drop(senders);
            let taken: Vec<Duration> =
                killers.into_iter().flat_map(|killer| killer.join().unwrap()).collect();
            let outcomes = outcomes.unwrap();
            for id in ids {
                assert!(matches!(outcomes[&id], Ok(SubjectStatus::Exited(0))), "{:?}", outcomes[&id]);
            }
            taken
        });
        drop(host);
        taken
    }

    /// Kills one subject again and again, and finally ends it.
    fn kill(&self, name: &str, news: &Receiver<News>, mut random: Rng) -> Vec<Duration> {
        let mut taken = Vec::new();
        let mut root = until("the first checkpoint", || {
            let status = guardian::status(&self.store(), Some(name)).ok()?;
            let row = status.rows.first()?;
            (row.facts.checkpoints > 0 && row.state == SubjectState::Running).then_some(Pid(row.pid))
        });
        for number in 0..kills() {
            std::thread::sleep(moment(&mut random, INCARNATION_MAX));
            let begun = Instant::now();
            ProcessId::of(root).unwrap().signal(KILL).unwrap();
            root = match news.recv_timeout(LIMIT) {
                Ok(News::Back(pid)) => pid,
                other => fail(root, &format!("{name} after death {number}: {other:?}")),
            };
            taken.push(begun.elapsed());
        }
        std::thread::sleep(moment(&mut random, INCARNATION_MAX));
        ProcessId::of(root).unwrap().signal(TERM).unwrap();
        // The host ends when both subjects have ended.
        match news.recv_timeout(5 * LIMIT) {
            Err(RecvTimeoutError::Disconnected) => taken,
            other => fail(root, &format!("{name} after SIGTERM: {other:?}")),
        }
    }

    /// Checks the count in the file of a subject. The count rises one by one, and goes back only after a kill.
    fn judge(&self, name: &str) {
        let text = std::fs::read_to_string(self.file(name)).unwrap();
        let lines: Vec<(i32, u64)> = text
            .lines()
            .map(|line| {
                let (pid, count) = line.split_once(' ').unwrap();
                (pid.parse().unwrap(), count.parse().unwrap())
            })
            .collect();
        let mut backwards = 0;
        for pair in lines.windows(2) {
            let ((pid, before), (next_pid, count)) = (pair[0], pair[1]);
            assert_eq!(pid, next_pid, "{name} has another pid");
            assert!(count <= before + 1, "{name} has left out {before} to {count}");
            backwards += usize::from(count <= before);
        }
        println!("{name}: {} lines, back {backwards} times", lines.len());
        assert!(backwards <= kills(), "{name} has gone back {backwards} times after {} deaths", kills());
        assert!(lines.len() > kills());
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn store(&self) -> StoreLocation {
        StoreLocation::new(Some(&self.folder.path().join("store"))).unwrap()
    }

    fn request(&self, name: &str) -> RunRequest {
        RunRequest {
            name: Some(name.to_owned()),
            every: Some(EVERY),
            keep: 4,
            files: Some(ChangedFiles::Keep),
            limit: RestartLimit { count: 10 * kills(), window: LIMIT },
            ..RunRequest::new(
                Guarded::Command(vec![self.program.clone().into(), self.file(name).into()]),
                self.store(),
            )
        }
    }
}

/// Ends this test, and the subject of a root. A panic of one thread would leave the host running for ever.
fn fail(root: Pid, what: &str) -> ! {
    eprintln!("{what}");
    if let Ok(root) = ProcessId::of(root) {
        let _ = root.signal(KILL);
    }
    std::process::exit(1)
}

fn news_of(event: &RunEvent) -> Option<News> {
    match event {
        RunEvent::Restored { pid, .. } => Some(News::Back(Pid(*pid))),
        RunEvent::Died { signal: Some(9), .. } | RunEvent::BackOff { .. } | RunEvent::Dropped { .. } => None,
        other => {
            println!("    {other}");
            let is_wrong = matches!(other, RunEvent::Died { .. } | RunEvent::Started { .. });
            is_wrong.then_some(News::Wrong)
        }
    }
}

fn compile() -> PathBuf {
    testkit::compiled(env!("CARGO_MANIFEST_DIR"), "family", &["-O1"]).unwrap()
}
