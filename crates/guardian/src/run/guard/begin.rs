//! The beginning of a guard, with a subject that runs.
//!
//! Owns: how its parts are put together, and what is told first.
//! Does not: start the subject; `starting` does.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use store::EPOCHS_IN_FLIGHT_MAX;
use supervise::{ChangedFiles, Plan};

use super::super::departed::Departed;
use super::super::leftovers::descendants;
use super::super::reasons::Reasons;
use super::super::request::{Guarded, RunRequest};
use super::super::tracer::{Place, Tracer};
use super::parts::{Driver, Guard, Parts, Refusals, Taking, Told, Tree, Voice, WatchedFiles};
use super::telling::first_record;
use crate::error::Result;
use crate::event::RunEvent;
use crate::files::{FilesReport, WrittenFiles};
use crate::journal::Journal;

impl Guard {
    pub(crate) fn new(request: RunRequest, parts: Parts) -> Result<Self> {
        let Parts { store, claim, host, foreground, requests, mut children, subject, beginning, .. } = parts;
        let Parts { log, tracking, files: (policy, no_rewind), watching, .. } = parts;
        children.as_mut().map_or(Ok(()), |children| children.begin(subject.pid(), Duration::ZERO))?;
        let mut record = first_record(&request, &claim, &subject, beginning.first, &tracking)?;
        record.facts.files = FilesReport::first(policy, no_rewind.as_deref());
        requests.name().clone_into(&mut record.requests);
        let journal = Journal::start(&claim.directory, claim.name.as_str(), host.clock.clone())?;
        let place = Place::new(&store, &claim.name, &request);
        let known = descendants(subject.pid());
        let owner = host.reaper.admit(subject.key());
        host.reaper.note(owner, &known);
        let mut guard = Self {
            tree: Tree {
                owner,
                children,
                child_death: None,
                known,
                departed: Departed::default(),
                resumed_after: Duration::ZERO,
                death: None,
                foreground: Arc::new(Mutex::new(foreground)),
            },
            driver: Driver::begin(plan(&request, policy), beginning, host.clock.now()),
            request,
            store,
            claim,
            requests,
            subject: Arc::new(subject),
            taking: Taking {
                tracer: Tracer::start(place, log, tracking, host.clock.clone())?,
                pending: VecDeque::with_capacity(EPOCHS_IN_FLIGHT_MAX),
                early: None,
                doubt: None,
            },
            host,
            refusals: Refusals::default(),
            files: WatchedFiles {
                policy,
                watching,
                written: WrittenFiles::default(),
                deferred: Reasons::default(),
                breaks: Reasons::default(),
            },
            voice: Voice { journal, record, told: Told::default(), outbox: Vec::new(), is_holding: false },
        };
        guard.tell_begin(no_rewind.as_deref());
        Ok(guard)
    }

    /// Tells that there is a subject, and why its files do not go back where nothing else was asked for.
    fn tell_begin(&mut self, no_rewind: Option<&str>) {
        match self.request.what {
            Guarded::Process(pid) => {
                let subject = self.claim.name.to_string();
                self.report(RunEvent::Adopted { pid: pid.get(), subject });
            }
            Guarded::Command(_) => {
                let pid = self.subject.pid().get();
                self.voice.journal.tell(RunEvent::Started { pid, why: None });
            }
        }
        if let Some(why) = no_rewind {
            self.report(RunEvent::FilesCompared { reason: why.to_owned() });
        }
        self.write_record();
    }
}

fn plan(request: &RunRequest, files: ChangedFiles) -> Plan {
    Plan {
        every: request.every,
        awaits_ready: request.await_ready,
        restart: request.policy,
        limit: request.limit,
        files,
        can_start: matches!(request.what, Guarded::Command(_)),
        in_flight_max: EPOCHS_IN_FLIGHT_MAX,
    }
}
