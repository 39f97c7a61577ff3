//! The state kind of the credentials of a thread: users, groups, capabilities, securebits.
//!
//! Owns: the credentials, and the order of calls that gives the credentials to a stub.
//! Invariants: a thread never runs with more privileges than at the checkpoint. If a privilege cannot be given, the
//! restore is refused and the error names the privilege. A thread with the restorer's own credentials costs no call.
//! Does not: restore no_new_privs and dumpable (`prctl` does), keys, or security labels.

use std::sync::OnceLock;

use model::Pid;
use prost::Message;
use sys::file_rights::FileRights;
use sys::task_reader::Field;
use tracee::arch::numbers as nr;
use tracee::{RemoteError, procfs};

use super::capability;
use super::kind::{Level, RawState, Stage, StateCapture, StateFacts, StateKind, StateRestore};
use super::remote_calls::RemoteCalls;
use crate::error::{ResourceError, Result};

const NAME: &str = "state/credentials";

const PR_GET_SECUREBITS: u64 = 27;
const PR_SET_SECUREBITS: u64 = 28;
const PR_CAPBSET_DROP: u64 = 24;
const PR_CAP_AMBIENT: u64 = 47;
const PR_CAP_AMBIENT_RAISE: u64 = 2;
const PR_CAP_AMBIENT_LOWER: u64 = 3;
/// The securebit with which a change of user ids does not change the capabilities.
const NO_SETUID_FIXUP: u32 = 1 << 2;
/// The securebit with which capabilities cannot be added to the ambient set.
const NO_AMBIENT_RAISE: u32 = 1 << 6;
/// _LINUX_CAPABILITY_VERSION_3.
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// The number of bytes in front of the capability sets: version and pid.
const HEADER_BYTES: usize = 8;
/// The number of bytes of the capability sets: lower halves of effective, permitted and inheritable, then upper
/// halves.
const SETS_BYTES: usize = 24;
/// The index of the user or group id that the kernel uses for checks of file accesses.
const FILE_SYSTEM: usize = 3;
/// The argument with which setfsuid(2) and setfsgid(2) change nothing and return the present id.
const PRESENT_ID: u64 = u32::MAX as u64;

/// The state kind of credentials.
pub(super) struct Credentials;

#[derive(Clone, PartialEq, Eq, Message)]
struct CredentialsMessage {
    /// The real, effective, saved and file-system user.
    #[prost(uint32, repeated, tag = "1")]
    users: Vec<u32>,
    /// The real, effective, saved and file-system group.
    #[prost(uint32, repeated, tag = "2")]
    groups: Vec<u32>,
    #[prost(uint32, repeated, tag = "3")]
    supplementary: Vec<u32>,
    #[prost(fixed64, tag = "4")]
    inheritable: u64,
    #[prost(fixed64, tag = "5")]
    permitted: u64,
    #[prost(fixed64, tag = "6")]
    effective: u64,
    #[prost(fixed64, tag = "7")]
    bounding: u64,
    #[prost(fixed64, tag = "8")]
    ambient: u64,
    #[prost(uint32, tag = "9")]
    securebits: u32,
}

impl StateKind for Credentials {
    fn facts(&self) -> StateFacts {
        StateFacts { name: NAME, level: Level::Thread, stage: Stage::Credentials }
    }

    fn sources(&self) -> Option<&'static [Field]> {
        Some(&[Field("cred->securebits")])
    }

    fn add_calls(&self, _capture: &mut StateCapture<'_>, calls: &mut RemoteCalls) -> Result<()> {
        // No file of /proc shows the securebits.
        calls.add(nr::PRCTL, [PR_GET_SECUREBITS, 0, 0, 0, 0, 0]);
        Ok(())
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        for result in capture.results(NAME) {
            raw.extend((result.value()? as u32).to_ne_bytes());
        }
        raw.extend_from_slice(capture.file("status")?);
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        let message = raw.split_first_chunk().and_then(|(securebits, status)| {
            CredentialsMessage::parse(status, u32::from_ne_bytes(*securebits))
        });
        match message {
            Some(message) => Ok(Some(message.encode_to_vec())),
            None => Err(incomplete("/proc/TID/status lacks a line")),
        }
    }

    fn file_rights(&self, _version: u32, payload: &[u8]) -> Result<Option<FileRights>> {
        let mut wanted = CredentialsMessage::decode_whole(payload)?;
        wanted.supplementary.sort_unstable();
        Ok(Some(FileRights {
            user: wanted.users[FILE_SYSTEM],
            group: wanted.groups[FILE_SYSTEM],
            supplementary: wanted.supplementary,
            effective: wanted.effective,
        }))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        CredentialsMessage::decode_whole(payload).map(drop)
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let wanted = CredentialsMessage::decode_whole(payload)?;
        let own = own()?;
        if *own == wanted {
            return Ok(());
        }
        refuse_more(own, &wanted, restore.stub.pid())?;
        Change { wanted: &wanted, now: own.clone(), restore }.make()
    }
}

impl CredentialsMessage {
    fn decode_whole(payload: &[u8]) -> Result<Self> {
        let message: Self = crate::error::decode(NAME, payload)?;
        if message.users.len() != 4 || message.groups.len() != 4 {
            return Err(incomplete("it does not have four user ids and four group ids"));
        }
        Ok(message)
    }

    fn parse(status: &[u8], securebits: u32) -> Option<Self> {
        let words = |name: &str| -> Option<Vec<u32>> {
            let line = procfs::status_line(status, name)?;
            line.split_whitespace().map(|word| word.parse().ok()).collect()
        };
        let set = |name: &str| u64::from_str_radix(procfs::status_line(status, name)?, 16).ok();
        Some(Self {
            users: words("Uid")?,
            groups: words("Gid")?,
            supplementary: words("Groups")?,
            inheritable: set("CapInh")?,
            permitted: set("CapPrm")?,
            effective: set("CapEff")?,
            bounding: set("CapBnd")?,
            ambient: set("CapAmb").unwrap_or(0),
            securebits,
        })
    }
}

/// Returns the credentials of this process. Every stub starts with these credentials, and this program never changes
/// its credentials.
fn own() -> Result<&'static CredentialsMessage> {
    static OWN: OnceLock<CredentialsMessage> = OnceLock::new();
    if let Some(own) = OWN.get() {
        return Ok(own);
    }
    let status = procfs::read("/proc/thread-self/status")?;
    let securebits = rustix::thread::capabilities_secure_bits()
        .map_err(|errno| sys::Error::new("read the securebits of this process", errno))?;
    let own = CredentialsMessage::parse(&status, securebits.bits())
        .ok_or_else(|| incomplete("/proc/thread-self/status lacks a line"))?;
    Ok(OWN.get_or_init(|| own))
}

fn incomplete(why: &str) -> ResourceError {
    ResourceError::malformed(NAME, why)
}

fn unsupported(pid: Pid, what: String, why: String) -> ResourceError {
    let fix = "restore as root with all capabilities that the program had".to_owned();
    ResourceError::Unsupported { pid, what, why, fix }
}

/// Returns an error if a record contains capabilities that the restorer lacks.
fn refuse_more(own: &CredentialsMessage, wanted: &CredentialsMessage, pid: Pid) -> Result<()> {
    let sets = [
        ("permitted", wanted.permitted, own.permitted),
        ("bounding", wanted.bounding, own.bounding),
        ("inheritable", wanted.inheritable, own.inheritable | own.permitted),
    ];
    for (set, wanted, own) in sets {
        let missing = wanted & !own;
        if missing != 0 {
            let what = format!("{} in the {set} set of capabilities", capability::names(missing));
            return Err(unsupported(pid, what, "the restorer does not have it".to_owned()));
        }
    }
    Ok(())
}

/// The change of a stub's credentials from the restorer's credentials to the recorded credentials. The stub keeps its
/// capabilities until the last step.
struct Change<'a, 'b> {
    wanted: &'a CredentialsMessage,
    now: CredentialsMessage,
    restore: &'a mut StateRestore<'b>,
}

impl Change<'_, '_> {
    fn make(mut self) -> Result<()> {
        let wanted = self.wanted;
        // This call must precede the change of the bounding set: a capability outside the bounding set cannot become
        // inheritable.
        self.set_capabilities(self.now.permitted, self.now.effective, wanted.inheritable)?;
        self.drop_bounding()?;
        self.set_groups()?;
        self.raise_ambient()?;
        self.set_users()?;
        self.set_securebits(wanted.securebits)?;
        self.set_capabilities(wanted.permitted, wanted.effective, wanted.inheritable)?;
        self.lower_ambient()
    }

    fn call(&mut self, what: &str, number: i64, arguments: [u64; 6]) -> Result<u64> {
        let pid = self.restore.stub.pid();
        self.restore.stub.call(number, arguments).map_err(|error| refused(pid, what, error))
    }

    fn call_with(&mut self, what: &str, number: i64, bytes: &[u8], first: Option<u64>) -> Result<()> {
        let pid = self.restore.stub.pid();
        if bytes.len() as u64 > self.restore.stub.data().len().get() {
            return Err(unsupported(
                pid,
                format!("a change of its {what}"),
                "the list exceeds the remote data buffer".to_owned(),
            ));
        }
        let arguments = |at: model::Address| match first {
            Some(first) => [first, at.get(), 0, 0, 0, 0],
            None => [at.get(), at.get() + HEADER_BYTES as u64, 0, 0, 0, 0],
        };
        let outcome = self.restore.stub.call_with(self.restore.memory, number, bytes, arguments);
        outcome.map(drop).map_err(|error| refused(pid, what, error))
    }

    fn set_capabilities(&mut self, permitted: u64, effective: u64, inheritable: u64) -> Result<()> {
        let sets = [effective, permitted, inheritable];
        if sets == [self.now.effective, self.now.permitted, self.now.inheritable] {
            return Ok(());
        }
        let mut bytes = Vec::with_capacity(HEADER_BYTES + SETS_BYTES);
        bytes.extend(CAPABILITY_VERSION.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        for half in [0, 32] {
            for set in sets {
                bytes.extend(((set >> half) as u32).to_ne_bytes());
            }
        }
        self.call_with("capabilities", nr::CAPSET, &bytes, None)?;
        self.now.effective = effective;
        self.now.permitted = permitted;
        self.now.inheritable = inheritable;
        // The kernel also removes an ambient capability that is missing in the permitted or the inheritable set.
        self.now.ambient &= permitted & inheritable;
        Ok(())
    }

    fn drop_bounding(&mut self) -> Result<()> {
        for number in capability::numbers(self.now.bounding & !self.wanted.bounding) {
            self.call("bounding set", nr::PRCTL, [PR_CAPBSET_DROP, number, 0, 0, 0, 0])?;
        }
        Ok(())
    }

    fn set_groups(&mut self) -> Result<()> {
        let wanted = self.wanted;
        if self.now.supplementary != wanted.supplementary {
            let bytes: Vec<u8> = wanted.supplementary.iter().flat_map(|group| group.to_ne_bytes()).collect();
            let count = wanted.supplementary.len() as u64;
            self.call_with("supplementary groups", nr::SETGROUPS, &bytes, Some(count))?;
        }
        if self.now.groups != wanted.groups {
            self.set_ids("groups", nr::SETRESGID, nr::SETFSGID, &wanted.groups)?;
        }
        Ok(())
    }

    fn set_users(&mut self) -> Result<()> {
        if self.now.users == self.wanted.users {
            return Ok(());
        }
        self.set_securebits(self.now.securebits | NO_SETUID_FIXUP)?;
        let wanted = self.wanted;
        self.set_ids("users", nr::SETRESUID, nr::SETFSUID, &wanted.users)
    }

    /// Sets the real, effective and saved id in one call, and the file-system id in a second call. The second call
    /// reports no errors, so the id is read back.
    fn set_ids(&mut self, what: &str, set_three: i64, set_file_system: i64, ids: &[u32]) -> Result<()> {
        let wide = |at: usize| u64::from(ids[at]);
        self.call(what, set_three, [wide(0), wide(1), wide(2), 0, 0, 0])?;
        if ids[3] != ids[1] {
            self.call(what, set_file_system, [wide(3), 0, 0, 0, 0, 0])?;
            if self.call(what, set_file_system, [PRESENT_ID, 0, 0, 0, 0, 0])? != wide(3) {
                let why = "the restorer lacks the privilege to set it".to_owned();
                return Err(unsupported(self.restore.stub.pid(), format!("file-system id {}", ids[3]), why));
            }
        }
        Ok(())
    }

    fn set_securebits(&mut self, bits: u32) -> Result<()> {
        if self.now.securebits != bits {
            self.call("securebits", nr::PRCTL, [PR_SET_SECUREBITS, u64::from(bits), 0, 0, 0, 0])?;
            self.now.securebits = bits;
        }
        Ok(())
    }

    fn raise_ambient(&mut self) -> Result<()> {
        let missing = self.wanted.ambient & !self.now.ambient;
        if missing != 0 && self.now.securebits & NO_AMBIENT_RAISE != 0 {
            self.set_securebits(self.now.securebits & !NO_AMBIENT_RAISE)?;
        }
        for number in capability::numbers(missing) {
            let call = [PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, number, 0, 0, 0];
            self.call("ambient capabilities", nr::PRCTL, call)?;
        }
        self.now.ambient |= missing;
        Ok(())
    }

    fn lower_ambient(&mut self) -> Result<()> {
        for number in capability::numbers(self.now.ambient & !self.wanted.ambient) {
            let call = [PR_CAP_AMBIENT, PR_CAP_AMBIENT_LOWER, number, 0, 0, 0];
            self.call("ambient capabilities", nr::PRCTL, call)?;
        }
        Ok(())
    }
}

fn refused(pid: Pid, what: &str, error: RemoteError) -> ResourceError {
    match error {
        RemoteError::Refused { errno, .. } => {
            unsupported(pid, format!("a change of its {what}"), errno.to_string())
        }
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_credentials_are_parsed_and_equal_themselves() {
        let own = own().unwrap();
        assert_eq!(own.users[1], rustix::process::geteuid().as_raw());
        assert_eq!(own.groups[1], rustix::process::getegid().as_raw());
        let again = CredentialsMessage::decode(own.encode_to_vec().as_slice()).unwrap();
        assert_eq!(again, *own);
    }

    #[test]
    fn a_capability_that_the_restorer_lacks_is_named() {
        let own = own().unwrap();
        let mut wanted = own.clone();
        wanted.permitted = 1 << 24;
        let bare = CredentialsMessage { permitted: 0, ..own.clone() };
        let error = refuse_more(&bare, &wanted, Pid(7)).unwrap_err().to_string();
        assert!(error.starts_with("CAP_SYS_RESOURCE in the permitted set"), "{error}");
    }
}
