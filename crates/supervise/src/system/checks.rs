//! Checks of a system file that involve several keys.
//!
//! Owns: parsing of the text, the checks across keys and components, and the start order of components.
//! Invariants: all mistakes that concern several keys or components are reported together. A mistake within one value
//! ends the parsing, and is therefore reported alone.
//! Does not: check programs, users or addresses on this machine.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::time::Duration;

use toml::Spanned;

use super::description::{Component, FilesPolicy, GiveUp, Policy, System};
use super::group::{Group, MemberDeath};
use super::mistake::{Mistake, Mistakes, of_parser, suggestion};

/// The maximum length of a name in bytes. The name is the name of a directory in the store, and the first part of the
/// names of checkpoints. Both kinds of names are limited to 255 bytes.
const NAME_MAX: usize = 64;

impl System {
    /// Parses and checks the content of a system file.
    ///
    /// # Errors
    ///
    /// Returns all mistakes in the file.
    pub fn parse(content: Vec<u8>) -> Result<Self, Mistakes> {
        let text = String::from_utf8(content).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
            Mistakes { all: vec![Mistake::new(at..at, "this is no UTF-8")], text }
        })?;
        let all = match toml::from_str::<Self>(&text) {
            Ok(system) => match system.mistakes() {
                none if none.is_empty() => return Ok(system),
                found => found,
            },
            Err(error) => vec![of_parser(&error, &text)],
        };
        Err(Mistakes { all, text })
    }

    /// Returns the JSON schema of a system file.
    #[must_use]
    pub fn schema() -> String {
        let schema = schemars::schema_for!(System);
        serde_json::to_string_pretty(&schema).unwrap_or_default()
    }

    /// Returns the components in rows. A component needs only components of earlier rows, so that the components of one
    /// row can start at the same time.
    #[must_use]
    pub fn start_order(&self) -> Vec<Vec<&str>> {
        let mut rows: Vec<Vec<&str>> = Vec::new();
        let mut placed = HashSet::new();
        while placed.len() < self.component.len() {
            let is_next = |(name, component): &(&Spanned<String>, &Component)| {
                let name = name.get_ref().as_str();
                !placed.contains(name)
                    && component.needs.iter().all(|need| placed.contains(need.get_ref().as_str()))
            };
            let row: Vec<&str> =
                self.component.iter().filter(is_next).map(|(name, _)| name.get_ref().as_str()).collect();
            if row.is_empty() {
                break;
            }
            placed.extend(row.iter().copied());
            rows.push(row);
        }
        rows
    }

    fn mistakes(&self) -> Vec<Mistake> {
        let mut found = Vec::new();
        found.extend(of_name(&self.system.name, "a system"));
        if self.component.is_empty() {
            let mistake = Mistake::new(self.system.name.span(), "the system has no component");
            found.push(mistake.with_help("add a table [component.NAME] with a command"));
        }
        for (name, component) in &self.component {
            found.extend(of_name(name, "a component"));
            found.extend(of_component(component));
            found.extend(self.of_needs(name, component));
        }
        for (name, group) in &self.group {
            found.extend(of_name(name, "a group"));
            found.extend(self.of_group(group));
            if group.together {
                found.extend(self.of_common_checkpoints(name, group));
            }
        }
        found.extend(self.of_memberships());
        found.extend(self.of_cycle());
        found
    }

    fn of_needs(&self, name: &Spanned<String>, component: &Component) -> Vec<Mistake> {
        let mut found: Vec<Mistake> =
            component.channels.keys().filter_map(|provider| self.unknown(provider)).collect();
        let mut seen = HashSet::new();
        for need in &component.needs {
            if need.get_ref() == name.get_ref() {
                found.push(Mistake::new(need.span(), format!("`{}` needs itself", name.get_ref())));
            } else if let Some(mistake) = self.unknown(need) {
                found.push(mistake);
            } else if !seen.insert(need.get_ref()) {
                found.push(Mistake::new(need.span(), format!("`{}` is needed twice", need.get_ref())));
            }
        }
        found
    }

    fn unknown(&self, name: &Spanned<String>) -> Option<Mistake> {
        if self.component.contains_key(name) {
            return None;
        }
        let mistake = Mistake::new(name.span(), format!("there is no component `{}`", name.get_ref()));
        let known = self.component.keys().map(|known| known.get_ref().as_str());
        let meant = suggestion(name.get_ref(), known);
        Some(match meant {
            Some(meant) => {
                mistake.with_help(format!("write `{meant}`, the component with the most similar name"))
            }
            None => mistake,
        })
    }

    fn of_group(&self, group: &Group) -> Vec<Mistake> {
        let members = group.members.get_ref();
        let mut found: Vec<Mistake> = members.iter().filter_map(|member| self.unknown(member)).collect();
        if members.len() < 2 {
            found.push(Mistake::new(group.members.span(), "a group has at least two members"));
        }
        for member in members.iter().filter(|_| group.together) {
            if self.component.get(member).is_some_and(|component| component.policy != Policy::Checkpointed) {
                let what =
                    format!("`{}` of a group with `together = true` is not checkpointed", member.get_ref());
                let mistake = Mistake::new(member.span(), what);
                found.push(mistake.with_help("add `policy = \"checkpointed\"` to the component"));
            }
        }
        if group.together && *group.on_member_death.get_ref() == MemberDeath::One {
            let what =
                "a member alone cannot be restored from the checkpoint of a group with `together = true`";
            let help = "remove `together`; then each component has checkpoints of its own, and only the dead one is restored";
            found.push(Mistake::new(group.on_member_death.span(), what).with_help(help));
        }
        found
    }

    /// Finds the keys that concern the checkpoints of a group and differ between its members: the group has one series of
    /// checkpoints.
    fn of_common_checkpoints(&self, name: &Spanned<String>, group: &Group) -> Vec<Mistake> {
        let mut found = Vec::new();
        if self.component.contains_key(name) {
            let what = format!("`{}` is also the name of a component", name.get_ref());
            let help =
                "the checkpoints of a group with `together = true` have the name of the group; rename it";
            found.push(Mistake::new(name.span(), what).with_help(help));
        }
        let members = group.members.get_ref();
        let known = |member: &Spanned<String>| self.component.get(member);
        let Some((first, own)) = members.iter().find_map(|member| Some((member, known(member)?))) else {
            return found;
        };
        for member in members {
            let Some(component) = known(member) else { continue };
            if let Some(key) = differing_key(own, component) {
                let (first, other) = (first.get_ref(), member.get_ref());
                let what = format!("`{key}` differs between `{first}` and `{other}`");
                let help = format!("give all members of a group with `together = true` the same `{key}`");
                found.push(Mistake::new(member.span(), what).with_help(help));
            }
            if component.is_warm() {
                let what = format!("`{}` of a group with `together = true` is warm", member.get_ref());
                found.push(Mistake::new(member.span(), what).with_help("remove `warm` from the component"));
            }
        }
        found
    }

    fn of_memberships(&self) -> Vec<Mistake> {
        let mut group_of: HashMap<&str, &str> = HashMap::new();
        let mut found = Vec::new();
        for (group, table) in &self.group {
            for member in table.members.get_ref() {
                let (member_name, group) = (member.get_ref().as_str(), group.get_ref().as_str());
                match group_of.insert(member_name, group) {
                    Some(other) if other == group => {
                        found.push(Mistake::new(member.span(), format!("`{member_name}` is listed twice")));
                    }
                    Some(other) => {
                        let what = format!("`{member_name}` is a member of the group `{other}` already");
                        found.push(Mistake::new(member.span(), what));
                    }
                    None => {}
                }
            }
        }
        found
    }

    /// Finds a cycle of `needs`. The mistake names the components of the cycle in order.
    fn of_cycle(&self) -> Option<Mistake> {
        let placed: HashSet<&str> = self.start_order().into_iter().flatten().collect();
        let is_open = |need: &&Spanned<String>| {
            !placed.contains(need.get_ref().as_str()) && self.component.contains_key(*need)
        };
        let (first, _) = self.component.iter().find(|(name, component)| {
            !placed.contains(name.get_ref().as_str()) && component.needs.iter().any(|need| is_open(&need))
        })?;
        let mut way: Vec<(&str, Range<usize>)> = vec![(first.get_ref(), first.span())];
        loop {
            let component = self.component.get(way.last()?.0)?;
            let next = component.needs.iter().find(is_open)?;
            if let Some(begin) = way.iter().position(|(name, _)| *name == next.get_ref()) {
                let mut names: Vec<&str> = way[begin..].iter().map(|(name, _)| *name).collect();
                names.push(next.get_ref());
                if names.len() == 2 {
                    // `of_needs` reports a component that needs itself.
                    return None;
                }
                let what = format!("components need each other in a circle: {}", names.join(" -> "));
                let help = "components of a cycle can never start; remove one of these `needs`";
                return Some(Mistake::new(next.span(), what).with_help(help));
            }
            way.push((next.get_ref(), next.span()));
        }
    }
}

fn of_name(name: &Spanned<String>, what: &str) -> Option<Mistake> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let text = name.get_ref();
    if !text.is_empty() && text.len() <= NAME_MAX && text.bytes().all(is_good) {
        return None;
    }
    let mistake = Mistake::new(name.span(), format!("{text:?} cannot be the name of {what}"));
    Some(mistake.with_help(format!("use up to {NAME_MAX} letters, digits, '-' and '_'")))
}

/// The maximum time between two checkpoints of a component whose output is held until a checkpoint is committed.
const OUTPUT_EVERY_MAX: Duration = Duration::from_secs(1);

fn of_output(component: &Component) -> Option<Mistake> {
    let output = component.output.as_ref().filter(|_| component.holds_output())?;
    if component.policy != Policy::Checkpointed {
        let what = "`output = \"committed\"` is for components with `policy = \"checkpointed\"`";
        return Some(Mistake::new(output.span(), what));
    }
    if component.every.as_ref().is_some_and(|every| every.get_ref().0 <= OUTPUT_EVERY_MAX) {
        return None;
    }
    let what = "the output of the component would wait for its next checkpoint for longer than a second";
    Some(
        Mistake::new(output.span(), what)
            .with_help("add `every` with at most 1s, for example `every = \"20ms\"`"),
    )
}

/// The minimum of `files_back_max` for a component whose output is held. The output can be held for this time.
const OUTPUT_BACK_MIN: Duration = Duration::from_secs(5);

/// Returns the keys about files that are present, with their places.
fn keys_of_files(component: &Component) -> impl Iterator<Item = (&'static str, Range<usize>)> {
    let keys = [
        ("files", component.files.as_ref().map(Spanned::span)),
        ("files_back_max", component.files_back_max.as_ref().map(Spanned::span)),
        ("files_undo_max", component.files_undo_max.as_ref().map(Spanned::span)),
        ("files_cost_max", component.files_cost_max.as_ref().map(Spanned::span)),
    ];
    keys.into_iter().filter_map(|(key, span)| Some((key, span?)))
}

fn of_files(component: &Component) -> Option<Mistake> {
    let files = component.files.as_ref();
    let back_max = component.files_back_max.as_ref();
    if component.policy != Policy::Checkpointed {
        let (key, span) = keys_of_files(component).next()?;
        let mistake = Mistake::new(span, format!("`{key}` is for components that are checkpointed"));
        return Some(mistake.with_help(format!(
            "add `policy = \"checkpointed\"`, or remove `{key}`: without checkpoints, files stay as they are"
        )));
    }
    if !component.holds_output() {
        return None;
    }
    if let Some(files) =
        files.filter(|files| matches!(files.get_ref(), FilesPolicy::Fresh | FilesPolicy::Trim))
    {
        let what = "the component could forget output that it has sent, because a restart after a change of a file uses no checkpoint";
        let help = "with `output = \"committed\"`, use `files = \"rewind\"`";
        return Some(Mistake::new(files.span(), what).with_help(help));
    }
    let short = back_max.filter(|back_max| back_max.get_ref().0 < OUTPUT_BACK_MIN)?;
    let what =
        "the component could forget output that it has sent, because its files go back for less than 5 s";
    Some(Mistake::new(short.span(), what).with_help("write at least 5s, or remove `files_back_max`"))
}

fn of_checkpoints(component: &Component) -> Option<Mistake> {
    let keys = [
        ("every", component.every.as_ref().map(Spanned::span)),
        ("cost_max", component.cost_max.as_ref().map(Spanned::span)),
        ("store_max", component.store_max.as_ref().map(Spanned::span)),
        ("on_restore", component.on_restore.as_ref().filter(|_| !component.is_warm()).map(Spanned::span)),
    ];
    let (key, span) = keys.into_iter().find_map(|(key, span)| Some((key, span?)))?;
    let mistake = Mistake::new(span, format!("`{key}` is for components that are checkpointed"));
    let help = format!("add `policy = \"checkpointed\"`, or remove `{key}`");
    (component.policy != Policy::Checkpointed).then(|| mistake.with_help(help))
}

fn of_component(component: &Component) -> Vec<Mistake> {
    let mut found = Vec::new();
    if component.command.get_ref().first().is_none_or(String::is_empty) {
        found.push(Mistake::new(component.command.span(), "the command is empty"));
    }
    found.extend(of_checkpoints(component));
    found.extend(of_files(component));
    let warm = component.warm.as_ref().filter(|_| component.is_warm());
    if let Some(warm) = warm.filter(|_| component.policy != Policy::Stateless) {
        found.push(Mistake::new(warm.span(), "`warm` is for components with `policy = \"stateless\"`"));
    }
    if let Some(warm) = warm.filter(|_| component.ready.is_none()) {
        let mistake = Mistake::new(warm.span(), "`warm` needs to know when the component is ready");
        found.push(mistake.with_help("add `ready`, for example `ready = { listen = true }`"));
    }
    found.extend(of_output(component));
    let restart = &component.restart;
    match (&restart.exec, restart.on_give_up) {
        (Some(exec), GiveUp::Exec) if exec.get_ref().first().is_none_or(String::is_empty) => {
            found.push(Mistake::new(exec.span(), "the command is empty"));
        }
        (Some(exec), other) if other != GiveUp::Exec => {
            let mistake = Mistake::new(exec.span(), "`exec` is run only with `on_give_up = \"exec\"`");
            found.push(mistake);
        }
        (None, GiveUp::Exec) => {
            let mistake = Mistake::new(component.command.span(), "`on_give_up = \"exec\"` without a program");
            found.push(mistake.with_help("add `exec = [\"PROGRAM\"]` to `restart`"));
        }
        _ => {}
    }
    if !(1.0..=100.0).contains(&restart.factor) || !(0.0..=1.0).contains(&restart.jitter) {
        let what = "the factor of a back-off is 1 to 100, its jitter 0 to 1";
        found.push(Mistake::new(component.command.span(), what));
    }
    found
}

/// Returns a key of checkpoints and restarts that two components do not have in common.
fn differing_key(one: &Component, other: &Component) -> Option<&'static str> {
    let differing = [
        ("every", one.every != other.every),
        ("output", one.output != other.output),
        ("files", one.files != other.files),
        ("files_back_max", one.files_back_max != other.files_back_max),
        ("files_undo_max", one.files_undo_max != other.files_undo_max),
        ("files_cost_max", one.files_cost_max != other.files_cost_max),
        ("cost_max", one.cost_max != other.cost_max),
        ("store_max", one.store_max != other.store_max),
        ("on_restore", one.on_restore != other.on_restore),
        ("restart", one.restart != other.restart),
    ];
    differing.into_iter().find(|(_, differs)| *differs).map(|(key, _)| key)
}

#[cfg(test)]
mod tests {
    use model::Signal;

    use super::*;
    use crate::status::SubjectStatus;

    const SHOP: &str = r#"
[system]
name = "shop"
store = "/var/lib/undying/shop"

[component.db]
command = ["redis-server", "--port", "7801", "--save", ""]
policy = "checkpointed"
every = "50ms"
ready = { tcp = "127.0.0.1:7801", timeout = "5s" }
limits = { memory = "1GiB", descriptors = 1000 }
integrity = "1m"
output = "committed"
files = "rewind"
files_back_max = "20s"
files_undo_max = "2GiB"
files_cost_max = 12.5
store_max = "4GiB"
on_restore = "true"
stop_signal = "SIGINT"
stop_timeout = "30s"
success = [20, "SIGUSR1"]
complaints = { quorum = 3, within = "1m" }

[component.proxy]
command = ["proxy"]
needs = ["web"]
heartbeat = { notify = true, every = "10s" }

[component.web]
command = ["python3", "web.py"]
policy = "stateless"
needs = ["db"]
channels = { proxy = "127.0.0.1:11211" }
ready = { listen = true }
warm = true
user = "www-data"
environment = { PORT = "8000" }
directory = "/srv/web"
log = "/var/log/web.log"
restart = { max = "5/1m", backoff = "50ms..10s", on_give_up = "restart-dependents" }

[group.front]
members = ["web", "proxy"]
strategy = "rest"
"#;

    fn shown(text: &str) -> String {
        match System::parse(text.into()) {
            Ok(system) => panic!("this was accepted: {system:?}"),
            Err(mistakes) => mistakes.shown("system.toml"),
        }
    }

    #[test]
    fn a_system_is_read_with_all_of_its_keys() {
        let system =
            System::parse(SHOP.into()).unwrap_or_else(|mistakes| panic!("{}", mistakes.shown("shop")));
        assert_eq!(system.start_order(), [["db"], ["web"], ["proxy"]]);
        let db = &system.component[&Spanned::new(0..0, "db".to_owned())];
        assert_eq!(db.policy, Policy::Checkpointed);
        assert_eq!(db.restart.max.0.get(), 5);
        assert_eq!(db.files.as_ref().map(Spanned::get_ref), Some(&FilesPolicy::Rewind));
        assert!(
            db.success().has(SubjectStatus::Exited(20))
                && db.success().has(SubjectStatus::Killed(Signal(10)))
        );
    }

    /// Each mistake is reported with line, column, a description and a suggestion.
    #[test]
    fn mistakes_are_reported_with_place_and_suggestion() {
        let cases: &[(&str, &str, &[&str])] = &[
            (
                "policy = \"stateless\"",
                "polcy = \"stateless\"",
                &["unknown key `polcy`", "a key `policy`", ":32:1"],
            ),
            ("policy = \"stateless\"", "zzz = 1", &["unknown key `zzz`", "the keys are command, policy"]),
            (
                "\"checkpointed\"",
                "\"checkpoint\"",
                &["unknown variant `checkpoint`", "`checkpointed`", ":8:10"],
            ),
            ("\"50ms\"", "\"50 minutess\"", &["is not of the form", ":9:9"]),
            ("every = \"50ms\"", "every = 50", &["invalid type: integer `50`", ":9:9"]),
            ("needs = [\"db\"]", "needs = [\"bd\"]", &["no component `bd`", "write `db`", ":33:10"]),
            ("channels = { proxy =", "channels = { bd =", &["no component `bd`", "write `db`", ":34:14"]),
            ("needs = [\"db\"]", "needs = [\"web\"]", &["`web` needs itself"]),
            ("needs = [\"db\"]", "needs = [\"db\", \"db\"]", &["`db` is needed twice"]),
            ("needs = [\"db\"]", "needs = [\"proxy\"]", &["in a circle: proxy -> web -> proxy"]),
            ("[\"python3\", \"web.py\"]", "[]", &["the command is empty", ":31:11"]),
            ("command = [\"proxy\"]\n", "", &["missing field `command`"]),
            (
                "tcp = \"127.0.0.1:7801\", ",
                "",
                &["one of notify, fd, log, listen, tcp, http and exec is missing"],
            ),
            ("listen = true", "listen = true, fd = 3", &["only one of notify, fd, log"]),
            ("listen = true", "fd = 1", &["descriptor 1 is a standard stream"]),
            ("notify = true, ", "", &["one of notify, tcp, http and exec is missing"]),
            ("ready = { listen = true }\n", "", &["`warm` needs to know when the component is ready"]),
            ("policy = \"checkpointed\"\n", "", &["`every` is for components that are checkpointed"]),
            ("policy = \"checkpointed\"\n", "", &["`output = \"committed\"` is for components"]),
            ("every = \"50ms\"", "every = \"2s\"", &["for longer than a second", ":13:10"]),
            ("warm = true", "files = \"keep\"", &["`files` is for components that are checkpointed"]),
            ("warm = true", "files_back_max = \"1m\"", &["`files_back_max` is for components"]),
            ("files_cost_max = 12.5", "cost_max = \"none\"", &["\"none\" is not of the form \"off\""]),
            ("warm = true", "files_cost_max = 5", &["`files_cost_max` is for components"]),
            ("files_cost_max = 12.5", "files_cost_max = 0", &["\"0\" is not of the form \"10 or 2.5\""]),
            ("\"SIGINT\"", "\"SIGNONE\"", &["\"SIGNONE\" is not of the form \"SIGINT\""]),
            ("files = \"rewind\"", "files = \"fresh\"", &["could forget output", "files = \"rewind\""]),
            ("files_back_max = \"20s\"", "files_back_max = \"1s\"", &["could forget output", "at least 5s"]),
            (
                "success = [20, \"SIGUSR1\"]",
                "success = [256]",
                &["\"256\" is not of the form \"10 or SIGUSR1\""],
            ),
            ("files = \"rewind\"", "files = \"never\"", &["unknown variant `never`"]),
            ("on_give_up = \"restart-dependents\"", "on_give_up = \"exec\"", &["without a program"]),
            ("on_give_up = \"restart-dependents\"", "exec = [\"x\"]", &["only with `on_give_up = \"exec\"`"]),
            ("max = \"5/1m\"", "factor = 0.5", &["the factor of a back-off is 1 to 100"]),
            ("[\"web\", \"proxy\"]", "[\"web\"]", &["a group has at least two members"]),
            ("[\"web\", \"proxy\"]", "[\"web\", \"web\"]", &["`web` is listed twice"]),
            (
                "[\"web\", \"proxy\"]",
                "[\"web\", \"db\"]\ntogether = true",
                &["`web` of a group with `together"],
            ),
            ("name = \"shop\"", "name = \"a/b\"", &["cannot be the name of a system"]),
            ("\"1GiB\"", "\"1GB\"", &["is not of the form \"512MiB\""]),
            ("name = \"shop\"", "name = \"shop", &[":3:"]),
        ];
        for (part, wrong, expected) in cases {
            let text = SHOP.replacen(part, wrong, 1);
            assert_ne!(text, SHOP, "{part}");
            let said = shown(&text);
            for words in *expected {
                assert!(said.contains(words), "{wrong}: {words:?} is missing in\n{said}");
            }
            assert!(said.contains("system.toml:") && said.contains('^'), "{said}");
        }
    }

    #[test]
    fn a_member_alone_is_not_restored_from_a_common_checkpoint() {
        let text = SHOP.replacen("[\"web\", \"proxy\"]", "[\"web\", \"db\"]\non_member_death = \"one\"", 1);
        assert_eq!(System::parse(text.clone().into()).err().map(|mistakes| mistakes.shown("x")), None);
        let said = shown(&text.replacen("on_member_death", "together = true\non_member_death", 1));
        assert!(
            said.contains("a member alone cannot be restored") && said.contains("remove `together`"),
            "{said}"
        );
    }

    #[test]
    fn keys_of_checkpoints_are_for_components_with_checkpoints() {
        for (part, wrong, expected) in [
            ("warm = true", "store_max = \"1GiB\"", "`store_max` is for components"),
            ("warm = true", "on_restore = \"true\"", "`on_restore` is for components"),
            ("\"4GiB\"", "\"4GB\"", "\"4GB\" is not of the form \"512MiB\""),
        ] {
            let said = shown(&SHOP.replacen(part, wrong, 1));
            assert!(said.contains(expected), "{wrong}: {said}");
        }
    }

    #[test]
    fn several_mistakes_are_reported_at_once() {
        let text = "[system]\nname = \"s\"\n[component.a]\ncommand = []\nneeds = [\"b\", \"c\"]\n";
        assert_eq!(System::parse(text.into()).unwrap_err().all.len(), 3);
        assert!(shown("[system]\nname = \"s\"\n").contains("has no component"));
        let binary = System::parse(b"[system]\nname = \"\xff\"\n".to_vec()).unwrap_err();
        assert!(binary.shown("system.toml").contains("system.toml:2:9"), "{}", binary.shown("system.toml"));
    }

    #[test]
    fn a_component_that_needs_a_circle_is_no_part_of_it() {
        let one =
            |name: &str, need: &str| format!("[component.{name}]\ncommand = [\"x\"]\nneeds = [\"{need}\"]\n");
        let text = ["[system]\nname = \"s\"\n", &one("a", "b"), &one("b", "c"), &one("c", "b")].concat();
        assert!(shown(&text).contains("in a circle: b -> c -> b"));
    }

    #[test]
    fn the_schema_has_every_key() {
        let schema = System::schema();
        for key in [
            "on_give_up",
            "heartbeat",
            "together",
            "descriptors",
            "restart-dependents",
            "50ms..10s",
            "notify",
        ] {
            assert!(schema.contains(&format!("\"{key}\"")), "{key}: {schema}");
        }
    }
}
