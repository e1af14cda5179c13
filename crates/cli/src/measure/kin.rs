//! Children of targets, and programs that a process starts by exec: they become targets of their own with the same request.
//!
//! The command looks for them periodically. Each is measured from the time at which it was noticed, and its values state that time.

use std::collections::HashMap;
use std::time::Duration;

use ingraft_api::Terms;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{MeasurementPlan, MeasurementRun, StreamArrival, TargetMeasurement};
use crate::args::{FollowMode, Format};
use crate::conn::{Client, InsertionRequest, RequestTarget};
use crate::exit::{Exit, Failure, Stop};
use crate::output::progress::Progress;
use crate::output::{self, Output, words};

/// Time between two looks for children and new programs.
pub(super) const LOOK: Duration = Duration::from_millis(20);
/// Time within which a program that has just begun must load the modules that the request names.
const LOADING: Duration = Duration::from_secs(2);

/// Longest time between two tries to measure a process that could not be measured; the time begins with [`LOOK`] and doubles.
const AGAIN: Duration = Duration::from_secs(1);

/// State of the children and new programs that were noticed.
#[derive(Default)]
pub(super) struct Kin {
    /// Living children that are not measured, by host and pid.
    left_out: HashMap<(Option<String>, i32), LeftOut>,
    starting: Vec<Starting>,
    missed: u64,
    why: Option<Failure>,
}

/// A process that could not be measured.
struct LeftOut {
    why: Failure,
    /// Time of the next try and the pause before it; `None` if another try is of no use.
    again: Option<(Instant, Duration)>,
}

impl LeftOut {
    /// Records a process that could not be measured. Warns if it is tried again and was not left out `before`.
    fn new(pid: i32, why: Failure, before: Option<LeftOut>, format: Format) -> Self {
        let again = why.may_pass().then(|| {
            if before.is_none() {
                output::warn(&words::deferred_kin(pid, &why), format);
            }
            let pause = before.and_then(|left| left.again).map_or(LOOK, |(_, pause)| AGAIN.min(pause * 2));
            (Instant::now() + pause, pause)
        });
        LeftOut { why, again }
    }

    fn is_left_alone(&self) -> bool {
        self.again.is_none_or(|(at, _)| Instant::now() < at)
    }
}

/// A process that has started another program, which may not be loaded yet.
struct Starting {
    client: Client,
    pid: i32,
    until: Instant,
    /// State of the tries if the program could not be measured for another reason than a missing module.
    left_out: Option<LeftOut>,
}

impl Kin {
    /// Measures a process as soon as the modules that the request names are loaded there.
    pub(super) fn begin(&mut self, client: &Client, pid: i32) {
        self.starting.push(Starting { client: client.clone(), pid, until: Instant::now() + LOADING, left_out: None });
    }

    fn begins(&self, client: &Client, pid: i32) -> bool {
        self.starting.iter().any(|starting| starting.pid == pid && starting.client.host() == client.host())
    }

    fn miss(&mut self, failure: Failure) {
        self.missed += 1;
        self.why.get_or_insert(failure);
    }

    /// Forgets the children of a host that have ended.
    fn forget_all_but(&mut self, children: &[i32], at: &Option<String>) {
        let ended = self.left_out.extract_if(|(host, pid), _| host == at && !children.contains(pid));
        let ended: Vec<LeftOut> = ended.map(|(_, left)| left).collect();
        ended.into_iter().for_each(|left| self.miss(left.why));
    }

    /// Whether the current look skips the child.
    fn leaves(&self, child: &(Option<String>, i32)) -> bool {
        self.left_out.get(child).is_some_and(LeftOut::is_left_alone)
    }

    /// Whether another target may come although no target is left.
    pub(super) fn comes(&self) -> bool {
        !self.starting.is_empty()
    }
}

impl MeasurementPlan {
    pub(super) fn follows(&self, what: FollowMode) -> bool {
        self.measure.follow.contains(&what)
    }

    pub(super) fn follows_anything(&self) -> bool {
        !self.measure.follow.is_empty()
    }
}

impl MeasurementRun<'_> {
    /// Measures the processes and programs that are new since the last look.
    pub(super) async fn look_for_kin(
        &mut self,
        events: &mpsc::Sender<StreamArrival>,
        out: &mut Output,
    ) -> Result<(), Stop> {
        for mut starting in std::mem::take(&mut self.kin.starting) {
            if starting.left_out.as_ref().is_some_and(LeftOut::is_left_alone) {
                self.kin.starting.push(starting);
                continue;
            }
            if self.living(&starting.client.host()).any(|site| site.pid() == starting.pid) {
                continue;
            }
            match self.measure_as_well(&starting.client, starting.pid, events, out).await? {
                None => {}
                Some(failure) if failure.may_pass() => {
                    let before = starting.left_out.take();
                    starting.left_out = Some(LeftOut::new(starting.pid, failure, before, self.format()));
                    self.kin.starting.push(starting);
                }
                Some(failure) if failure.exit == Exit::NotFound && Instant::now() < starting.until => {
                    self.kin.starting.push(starting);
                }
                Some(failure) => self.kin.miss(failure),
            }
        }
        if !self.plan.follows(FollowMode::Fork) {
            return Ok(());
        }
        let mut children: Vec<(Client, i32)> = Vec::new();
        for client in self.clients() {
            let theirs = self.sites.iter().filter(|site| site.goes_on() && site.client.is(&client));
            let parents: Vec<i32> = theirs.map(|site| site.pid()).collect();
            // The engine that measures a process knows which of its children are measured with it.
            let found = if parents.is_empty() { Vec::new() } else { client.children(parents).await? };
            children.extend(found.into_iter().map(|pid| (client.clone(), pid)));
        }
        for client in self.context.engines.clients() {
            let host = client.host();
            let here: Vec<i32> = children.iter().filter(|(at, _)| at.host() == host).map(|(_, pid)| *pid).collect();
            self.kin.forget_all_but(&here, &host);
        }
        for (client, pid) in children {
            let host = client.host();
            let known = self.living(&host).any(|site| site.pid() == pid);
            let child = (host, pid);
            if known || self.kin.leaves(&child) || self.kin.begins(&client, pid) {
                continue;
            }
            let why = self.measure_as_well(&client, pid, events, out).await?;
            let before = self.kin.left_out.remove(&child);
            let Some(why) = why else { continue };
            let left = LeftOut::new(pid, why, before, self.format());
            self.kin.left_out.insert(child, left);
        }
        Ok(())
    }

    pub(super) fn living(&self, host: &Option<String>) -> impl Iterator<Item = &TargetMeasurement> {
        self.sites.iter().filter(move |site| site.goes_on() && site.host() == *host)
    }

    /// Inserts the request into a process that was not asked for by name. Returns the failure if the process cannot be measured.
    async fn measure_as_well(
        &mut self,
        client: &Client,
        pid: i32,
        events: &mpsc::Sender<StreamArrival>,
        out: &mut Output,
    ) -> Result<Option<Failure>, Stop> {
        let Some(first) = self.plan.requests.first() else { return Ok(None) };
        let terms = Terms { wait: Duration::ZERO, ..first.terms };
        let request = InsertionRequest { target: RequestTarget::Pid(pid), terms, ..first.clone() };
        let mut progress = Progress::new("reading the program", self.format());
        match client.enable(&request, &mut progress).await {
            Ok(made) => {
                drop(progress);
                let late_ns = Some(made.1.since_ns);
                self.add(made, events, out)?;
                if let Some(site) = self.sites.last_mut() {
                    site.late_ns = late_ns;
                }
                Ok(None)
            }
            Err(failure) => Ok(Some(failure)),
        }
    }

    /// Handles the end of a target. Fetches its last values at once, because the other targets may run for long. If the target has started
    /// another program, that program is measured when it is loaded.
    pub(super) async fn depart(&mut self, at: usize, exec: bool, out: &mut Output) -> Result<(), Stop> {
        let (format, measure) = (self.format(), self.plan.measure.clone());
        let Some(site) = self.sites.get_mut(at).filter(|_| self.plan.follows_anything()) else { return Ok(()) };
        if exec && self.plan.follows(FollowMode::Exec) {
            let (client, pid) = (site.client.clone(), site.pid());
            self.kin.begin(&client, pid);
        }
        if site.farewell.is_none() {
            if self.plan.keeps_history() {
                site.fetch_history(format).await;
            }
            let farewell = site.leave(&measure, format, out).await?;
            site.farewell = Some(farewell);
        }
        Ok(())
    }

    /// Warns of the number of followed processes that were not measured.
    pub(super) fn tell_missed(&mut self) {
        let children = std::mem::take(&mut self.kin.left_out).into_values();
        let programs = std::mem::take(&mut self.kin.starting).into_iter().filter_map(|starting| starting.left_out);
        children.chain(programs).for_each(|left| self.kin.miss(left.why));
        if let Some(why) = &self.kin.why {
            output::warn(&words::missed_kin(self.kin.missed, why), self.format());
        }
    }
}
