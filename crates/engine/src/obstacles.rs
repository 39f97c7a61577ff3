//! Preflight: finds the obstacles, the reasons to refuse a checkpoint. Changes nothing in the subject.
//!
//! Owns: the checks that belong to no single kind (namespaces, tracers, dead leaders, sessions), and the text of a
//! list of obstacles.
//! Invariants: every obstacle names the process, the reason and a remedy.
//! Does not: contain the checks of a kind; this module calls each kind.

use std::path::PathBuf;
use std::sync::OnceLock;

use model::{Escaped, Pid};
use resource::fd::{self, CaptureScope, Description};
use resource::{Obstacle, memory, state};
use sys::Errno;
use tracee::procfs::{self, Mapping};

use crate::relations::{Births, Homeless, Relation};
use crate::sharing;

/// The maximum number of groups that a text lists.
const GROUPS_MAX: usize = 32;
/// The maximum number of processes that a group names.
const PIDS_MAX: usize = 8;
/// The maximum number of objects, and of places, that a group names.
const PLACES_MAX: usize = 3;

/// Formats obstacles as text, one string for each group.
///
/// A group consists of obstacles that differ only in numbers (pids, descriptors, addresses, inodes). The text of a
/// group names some of its processes, with their programs, and some of its places.
#[must_use]
pub fn grouped(obstacles: &[Obstacle]) -> Vec<String> {
    grouped_with(obstacles, program)
}

/// Returns the name of the program in a process; `None` if the process does not exist.
pub(crate) fn program(pid: Pid) -> Option<String> {
    procfs::read_text(format!("/proc/{pid}/comm")).ok().map(|name| name.trim_end().to_owned())
}

fn grouped_with(obstacles: &[Obstacle], program: impl Fn(Pid) -> Option<String>) -> Vec<String> {
    let mut groups: Vec<(String, Vec<&Obstacle>)> = Vec::new();
    let mut left_out = 0;
    for obstacle in obstacles {
        let key = [&obstacle.what, &obstacle.why, &obstacle.fix].map(|text| without_numbers(text)).join("|");
        match groups.iter().position(|(known, _)| *known == key) {
            Some(group) => groups[group].1.push(obstacle),
            None if groups.len() < GROUPS_MAX => groups.push((key, vec![obstacle])),
            None => left_out += 1,
        }
    }
    let mut texts: Vec<String> = groups.iter().map(|(_, members)| group_text(members, &program)).collect();
    if left_out > 0 {
        texts.push(format!("{left_out} more obstacles of other kinds"));
    }
    texts
}

fn group_text(members: &[&Obstacle], program: &impl Fn(Pid) -> Option<String>) -> String {
    let first = members[0];
    let mut pids: Vec<Pid> = members.iter().map(|member| member.pid).collect();
    pids.dedup();
    let process_name = |(place, pid): (usize, &Pid)| match program(*pid).filter(|_| place < PIDS_MAX) {
        Some(name) => format!("{pid} ({})", Escaped(&name)),
        None => pid.to_string(),
    };
    let pids: Vec<String> = pids.iter().enumerate().map(process_name).collect();
    let process = if pids.len() == 1 { "pid" } else { "pids" };
    let mut objects: Vec<String> = members.iter().map(|member| Escaped(&member.what).to_string()).collect();
    objects.dedup();
    let mut places: Vec<String> = members.iter().map(|member| Escaped(&member.place).to_string()).collect();
    places.retain(|place| !place.is_empty());
    places.dedup();
    let mut text = format!("{process} {}: {}", named(&pids, PIDS_MAX), named(&objects, PLACES_MAX));
    if !places.is_empty() {
        text.push_str(&format!(" at {}", named(&places, PLACES_MAX)));
    }
    text.push_str(&format!(": {}\n    help: {}", Escaped(&first.why), Escaped(&first.fix)));
    text
}

/// Joins at most `most` of the names, and appends the number of omitted names.
fn named(names: &[String], most: usize) -> String {
    let shown = names[..names.len().min(most)].join(", ");
    match names.len().saturating_sub(most) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Returns the text without the words that contain a digit.
fn without_numbers(text: &str) -> String {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
    let plain: Vec<&str> =
        words.filter(|word| !word.is_empty() && !word.bytes().any(|byte| byte.is_ascii_digit())).collect();
    plain.join(" ")
}

/// Returns the obstacles of a subject, except the obstacles of its descriptors.
pub(crate) fn of_tree(processes: &[(Pid, &[Mapping])], pids: &[Pid]) -> sys::Result<Vec<Obstacle>> {
    let mut found = Vec::new();
    let surroundings = Surroundings::own()?;
    for (pid, mappings) in processes {
        found.extend(of_process(*pid, surroundings)?);
        found.extend(memory::obstacles(*pid, mappings));
        found.extend(state::REGISTRY.iter().flat_map(|kind| kind.obstacles(*pid)));
    }
    let stats: Vec<_> = pids.iter().filter_map(|pid| procfs::stat(*pid).ok()).collect();
    let births = births_of(&stats);
    found.extend(sharing::obstacles(processes, &stats, &births));
    found.extend(of_relations(pids, &stats, &births));
    Ok(found)
}

pub(crate) fn of_descriptor(description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
    let found = fd::envelope::obstacles(description, scope);
    if !found.is_empty() {
        // Do not call the kind: a kind may open the file, and open(2) breaks a lease on the file.
        return found;
    }
    match fd::kind_of(description) {
        Some(kind) => kind.obstacles(description, scope),
        None => {
            let what = fd::unclaimed::describe_unclaimed(description);
            let fix = fd::unclaimed::advise(&what);
            vec![description.obstacle(&what, "descriptors of this kind are not saved yet", fix)]
        }
    }
}

fn obstacle(pid: Pid, what: &str, place: String, why: &str, fix: &str) -> Obstacle {
    Obstacle { pid, what: what.to_owned(), place, why: why.to_owned(), fix: fix.to_owned() }
}

/// What a restored process would have of this process: the security label and the namespaces.
struct Surroundings {
    label: Option<Vec<u8>>,
    /// The targets of the links in `/proc/PID/ns`, in the order of `NAMESPACES`.
    namespaces: Vec<Option<PathBuf>>,
}

impl Surroundings {
    /// Returns those of this process, which never change: it calls neither setns(2) nor unshare(2) for a namespace.
    fn own() -> sys::Result<&'static Self> {
        static OWN: OnceLock<Surroundings> = OnceLock::new();
        if let Some(known) = OWN.get() {
            return Ok(known);
        }
        let own = Self::of("self", true)?;
        Ok(OWN.get_or_init(|| own))
    }

    fn of(process: &str, has_label: bool) -> sys::Result<Self> {
        let link = |name: &str| known(procfs::link(format!("/proc/{process}/ns/{name}")));
        let namespaces =
            sharing::NAMESPACES.iter().map(|(name, ..)| link(name)).collect::<sys::Result<_>>()?;
        Ok(Self { label: if has_label { label(process)? } else { None }, namespaces })
    }
}

/// Returns `None` for a file that does not exist: the process has ended, or the kernel or a security module lacks it
/// (EINVAL).
fn known<T>(read: sys::Result<T>) -> sys::Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if matches!(error.errno, Errno::ENOENT | Errno::ESRCH | Errno::EINVAL) => Ok(None),
        Err(error) => Err(error),
    }
}

fn of_process(pid: Pid, ours: &Surroundings) -> sys::Result<Vec<Obstacle>> {
    let mut found = Vec::new();
    // A process that has ended meanwhile has no obstacles.
    let Some(status) = known(procfs::status(pid))? else { return Ok(found) };
    if status.tracer != Pid(0) && !is_own_thread(status.tracer) {
        found.push(of_tracer(pid, status.tracer, program(status.tracer)));
    }
    if status.state == 'Z' && status.threads > 1 {
        found.push(obstacle(
            pid,
            "ended leader",
            String::new(),
            "its first thread has ended while others live; such a process cannot be built again yet",
            "wait until the other threads end, or let the first one wait for them",
        ));
    }
    let theirs = Surroundings::of(&pid.to_string(), ours.label.is_some())?;
    found.extend(of_label(pid, theirs.label.as_deref(), ours.label.as_deref()));
    let inner = status.nspid.last().copied().unwrap_or(pid.get());
    if inner == INIT {
        // The advice for a process in other namespaces would end here, too.
        found.push(of_init(pid));
        return Ok(found);
    }
    found.extend(of_namespaces(pid, inner, &theirs.namespaces, &ours.namespaces));
    Ok(found)
}

/// Returns the obstacles of a process whose namespaces are not those of this process. `inner` is the pid inside its
/// namespace.
fn of_namespaces(
    pid: Pid,
    inner: i32,
    theirs: &[Option<PathBuf>],
    ours: &[Option<PathBuf>],
) -> Vec<Obstacle> {
    let differ =
        |place: &usize| theirs[*place].is_some() && ours[*place].is_some() && theirs[*place] != ours[*place];
    let places = (0..sharing::NAMESPACES.len()).filter(differ);
    let of = |place: usize| {
        let (name, what, _) = sharing::NAMESPACES[place];
        // Inside a namespace, the children of a process get the same one. The kind itself precedes that of the children.
        let fix = if name.ends_with("_for_children") && theirs[place] != theirs[place - 1] {
            "the program has called unshare(2) or setns(2) for its next children; start it without that"
                .to_owned()
        } else {
            format!(
                "run undying inside the same namespaces: `nsenter -t {pid} -a undying preflight {inner}`, or start undying \
                 in there"
            )
        };
        let place = theirs[place].as_ref().map_or(String::new(), |theirs| theirs.display().to_string());
        obstacle(
            pid,
            &format!("{what} namespace"),
            place,
            "namespaces of the subject's own are not rebuilt yet",
            &fix,
        )
    };
    places.map(of).collect()
}

/// The pid of the first process of a PID namespace, in this namespace.
const INIT: i32 = 1;

/// Returns the obstacle of the first process of a PID namespace, for example the program of a container. Only the first
/// process of a new PID namespace gets pid 1. From inside its namespace, the process cannot be killed.
fn of_init(pid: Pid) -> Obstacle {
    obstacle(
        pid,
        "first process of a PID namespace",
        String::new(),
        "its pid is 1, which a restore cannot choose, because namespaces of the subject's own are not rebuilt yet",
        "let another process be the first one of the container, for example start the container with \
         `undying run -- PROGRAM`",
    )
}

/// Returns the obstacle of a process that another program traces.
fn of_tracer(pid: Pid, tracer: Pid, name: Option<String>) -> Obstacle {
    let (what, fix) = match name {
        Some(name) if name.starts_with("undying") => (
            format!("tracer pid {tracer} ({name})"),
            "wait until `undying restore --lazy` or another checkpoint of it has ended".to_owned(),
        ),
        Some(name) => (format!("tracer pid {tracer} ({name})"), format!("end {name} first")),
        None => (format!("tracer pid {tracer}"), "end the debugger or strace first".to_owned()),
    };
    obstacle(pid, &what, String::new(), "a process can have one tracer only", &fix)
}

/// Returns an obstacle if the security label of a process differs from the label of this process. The restored
/// program would run under the label of `undying`, and could then have more rights.
fn of_label(pid: Pid, theirs: Option<&[u8]>, ours: Option<&[u8]>) -> Option<Obstacle> {
    let theirs = theirs.filter(|theirs| ours.is_some_and(|ours| ours != *theirs))?;
    Some(obstacle(
        pid,
        "security label",
        String::from_utf8_lossy(theirs).trim_end_matches(['\0', '\n']).to_owned(),
        "after a restore, the program would run under the label of undying",
        "run undying under the same label (aa-exec, runcon)",
    ))
}

/// Returns the label of AppArmor, SELinux or Smack; `None` if none of these modules is active.
fn label(process: &str) -> sys::Result<Option<Vec<u8>>> {
    known(procfs::read(format!("/proc/{process}/attr/current")))
}

/// Reports whether the tracer is a thread of this process. A subject that keeps changing is inspected while this
/// process traces the subject.
fn is_own_thread(tracer: Pid) -> bool {
    std::path::Path::new(&format!("/proc/self/task/{tracer}")).exists()
}

/// Returns the obstacle of a process that lacks the instructions for remote system calls, which `undying` makes a
/// stopped thread execute.
pub(crate) fn of_code(pid: Pid) -> Obstacle {
    obstacle(
        pid,
        "code",
        String::new(),
        "remote system calls need the instructions `syscall; ret` and a return from a signal handler (`mov $15, %eax; \
         syscall`), and the code lacks one of them; a static program contains the return only if it calls sigaction",
        "link the program dynamically, or make the program call sigaction; if the program is just starting, retry",
    )
}

/// Returns an obstacle if the ELF header (elf(5)) of a process's executable is not for 64-bit x86 code.
pub(crate) fn of_architecture(pid: Pid) -> Option<Obstacle> {
    const CLASS_AT: usize = 4;
    const CLASS_32: u8 = 1;
    const MACHINE_AT: usize = 18;
    const MACHINE_X86_64: u8 = 62;
    let path = format!("/proc/{pid}/exe");
    let mut header = [0; MACHINE_AT + 2];
    std::fs::File::open(&path).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut header)).ok()?;
    if header[CLASS_AT] != CLASS_32 {
        return None;
    }
    let what = if header[MACHINE_AT] == MACHINE_X86_64 { "x32 program" } else { "32-bit x86 program" };
    Some(obstacle(
        pid,
        what,
        procfs::link(&path).map_or(String::new(), |path| path.display().to_string()),
        "only 64-bit x86-64 code is supported: this program has other registers, system calls and vDSO",
        "run a 64-bit build of the program",
    ))
}

/// Returns the obstacle of a process that maps no part of its executable.
pub(crate) fn of_executable(pid: Pid) -> Obstacle {
    obstacle(
        pid,
        "executable",
        format!("/proc/{pid}/exe"),
        "the program has unmapped every part of its own program file, and an image keeps only mapped files",
        "start the program without a tool that replaces its code (an unpacker, code in huge pages)",
    )
}

/// Determines which process a restore would let create each process.
pub(crate) fn births_of(stats: &[procfs::Stat]) -> Births {
    let relation = |stat: &procfs::Stat| Relation {
        pid: stat.pid,
        parent: stat.ppid,
        group: stat.pgrp,
        session: stat.session,
    };
    Births::of(&stats.iter().map(relation).collect::<Vec<_>>())
}

/// Returns the obstacles of sessions and process groups that a restore cannot create again.
fn of_relations(pids: &[Pid], stats: &[procfs::Stat], births: &Births) -> Vec<Obstacle> {
    let session_of = |pid: Pid| stats.iter().find(|stat| stat.pid == pid).map_or(Pid(0), |stat| stat.session);
    let mut found = Vec::new();
    for (pid, reason) in &births.homeless {
        let why = match reason {
            Homeless::LeaderElsewhere => {
                "only a process of that session with the same parent could create it again, and the leader has \
                 another parent"
            }
            Homeless::SeveralParents => {
                "the leader of that session has ended, and members that it left have several parents"
            }
        };
        let place = format!("session {}", session_of(*pid));
        found.push(obstacle(
            *pid,
            "session",
            place,
            why,
            "end this process, or its parent, before the checkpoint",
        ));
    }
    if births.dead_sessions.is_empty() && births.dead_groups.is_empty() {
        return found;
    }
    let others = procfs::processes().unwrap_or_default();
    let others: Vec<_> =
        others.iter().filter(|pid| !pids.contains(pid)).filter_map(|pid| procfs::stat(*pid).ok()).collect();
    for (session, parent) in &births.dead_sessions {
        if let Some(other) = others.iter().find(|other| other.session == *session) {
            let member = stats.iter().find(|stat| stat.session == *session).map_or(*parent, |stat| stat.pid);
            found.push(shared_outside(member, "session", *session, other.pid));
        }
    }
    for (group, member) in &births.dead_groups {
        if let Some(other) = others.iter().find(|other| other.pgrp == *group) {
            found.push(shared_outside(*member, "process group", *group, other.pid));
        }
    }
    found
}

fn shared_outside(member: Pid, what: &str, number: Pid, outside: Pid) -> Obstacle {
    obstacle(
        member,
        what,
        format!("{what} {number}"),
        &format!("pid {outside} outside the tree belongs to it as well, and it cannot be joined again"),
        "checkpoint a process that is the ancestor of both, or start the program with setsid",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(pid: i32, fd: i32) -> Obstacle {
        obstacle(Pid(pid), &format!("fd {fd} (io_uring instance)"), String::new(), "not saved", "stop it")
    }

    #[test]
    fn an_obstacle_of_many_processes_is_reported_once() {
        let mut obstacles: Vec<Obstacle> = (0..150).map(|number| ring(1000 + number, number)).collect();
        obstacles.push(obstacle(Pid(7), "tracer", "tracer pid 9".to_owned(), "one only", "end it"));
        let programs = |pid: Pid| (pid != Pid(1000)).then(|| "ring".to_owned());
        let texts = grouped_with(&obstacles, programs);
        assert_eq!(texts.len(), 2, "{texts:?}");
        assert!(
            texts[0].starts_with("pids 1000, 1001 (ring),") && texts[0].contains("and 142 more"),
            "{texts:?}"
        );
        assert!(texts[0].contains("and 147 more: not saved\n    help: stop it"), "{texts:?}");
        assert_eq!(texts[1], "pid 7 (ring): tracer at tracer pid 9: one only\n    help: end it");
    }

    #[test]
    fn a_tracer_is_named() {
        let found = |name: &str| of_tracer(Pid(7), Pid(9), Some(name.to_owned()));
        assert_eq!(
            (found("gdb").what.as_str(), found("gdb").fix.as_str()),
            ("tracer pid 9 (gdb)", "end gdb first")
        );
        assert!(found("undying-tracer").fix.contains("restore --lazy"));
        assert!(of_tracer(Pid(7), Pid(9), None).fix.contains("debugger"));
    }

    #[test]
    fn another_security_label_is_an_obstacle_and_none_is_not() {
        let confined: &[u8] = b"/usr/sbin/named (enforce)\n";
        let found = of_label(Pid(7), Some(confined), Some(b"unconfined\n")).unwrap();
        assert_eq!(found.place, "/usr/sbin/named (enforce)");
        assert_eq!(of_label(Pid(7), Some(confined), Some(confined)), None);
        assert_eq!(of_label(Pid(7), None, None), None);
    }

    #[test]
    fn texts_that_differ_in_more_than_numbers_are_reported_separately_up_to_a_limit() {
        let obstacles: Vec<Obstacle> = (0..100_u32)
            .map(|number| obstacle(Pid(7), &"x".repeat(1 + number as usize), String::new(), "why", "fix"))
            .collect();
        let texts = grouped(&obstacles);
        assert_eq!(texts.len(), GROUPS_MAX + 1);
        assert_eq!(texts[GROUPS_MAX], format!("{} more obstacles of other kinds", 100 - GROUPS_MAX));
    }
}
