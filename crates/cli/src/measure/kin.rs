//! Children of targets, and programs that take a process over: they become targets of their own with the same request.
//!
//! They are looked for again and again, so that each is measured from when it was noticed on, and says since when.

use std::collections::HashSet;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Arrival, Plan, Session, Site};
use crate::args::Follow;
use crate::conn::{Client, Request, Target};
use crate::exit::{Failure, Kind, Stop};
use crate::output::progress::Progress;
use crate::output::{self, Output, words};

/// How often they are looked for.
pub(super) const LOOK: Duration = Duration::from_millis(20);
/// How long a program that has just begun may take until what was asked for is loaded.
const LOADING: Duration = Duration::from_secs(2);

/// What is known of them.
#[derive(Default)]
pub(super) struct Kin {
    /// Children that cannot be measured and are still there, with their hosts.
    given_up: HashSet<(Option<String>, i32)>,
    starting: Vec<Starting>,
    missed: u64,
    why: Option<Failure>,
}

/// A process that has started another program, which may not be loaded yet.
struct Starting {
    client: Client,
    pid: i32,
    until: Instant,
}

impl Kin {
    fn miss(&mut self, failure: Failure) {
        self.missed += 1;
        self.why.get_or_insert(failure);
    }

    /// Whether more may come although no target goes on.
    pub(super) fn comes(&self) -> bool {
        !self.starting.is_empty()
    }
}

impl Plan {
    pub(super) fn follows(&self, what: Follow) -> bool {
        self.measure.follow.contains(&what)
    }

    pub(super) fn follows_anything(&self) -> bool {
        !self.measure.follow.is_empty()
    }
}

impl Session<'_> {
    /// Measures what has come since the last look.
    pub(super) async fn look_for_kin(&mut self, events: &mpsc::Sender<Arrival>, out: &mut Output) -> Result<(), Stop> {
        for starting in std::mem::take(&mut self.kin.starting) {
            match self.measure_as_well(&starting.client, starting.pid, events, out).await? {
                None => {}
                Some(failure) if failure.kind == Kind::NotFound && Instant::now() < starting.until => {
                    self.kin.starting.push(starting);
                }
                Some(failure) => self.kin.miss(failure),
            }
        }
        if !self.plan.follows(Follow::Fork) {
            return Ok(());
        }
        for client in self.context.engines.clients() {
            let host = client.host();
            let parents: Vec<i32> = self.living(&host).map(|site| site.enabled.pid).collect();
            let children = client.children(parents).await?;
            self.kin.given_up.retain(|(at, pid)| *at != host || children.contains(pid));
            for pid in children {
                let known = self.living(&host).any(|site| site.enabled.pid == pid);
                if known || self.kin.given_up.contains(&(host.clone(), pid)) {
                    continue;
                }
                if let Some(failure) = self.measure_as_well(client, pid, events, out).await? {
                    self.kin.given_up.insert((host.clone(), pid));
                    self.kin.miss(failure);
                }
            }
        }
        Ok(())
    }

    fn living(&self, host: &Option<String>) -> impl Iterator<Item = &Site> {
        self.sites.iter().filter(move |site| site.goes_on() && site.host() == *host)
    }

    /// Inserts the request into a process that was not asked for by name; why it is not measured.
    async fn measure_as_well(
        &mut self,
        client: &Client,
        pid: i32,
        events: &mpsc::Sender<Arrival>,
        out: &mut Output,
    ) -> Result<Option<Failure>, Stop> {
        let Some(first) = self.plan.requests.first() else { return Ok(None) };
        let request = Request { target: Target::Pid(pid), wait: Duration::ZERO, ..first.clone() };
        let mut progress = Progress::new("reading the program", self.format());
        match client.enable(&request, &mut progress).await {
            Ok(enabled) => {
                drop(progress);
                let late_ns = Some(enabled.since_ns);
                self.add(client, enabled, events, out)?;
                if let Some(site) = self.sites.last_mut() {
                    site.late_ns = late_ns;
                }
                Ok(None)
            }
            Err(failure) => Ok(Some(failure)),
        }
    }

    /// A target has ended. Its last values are fetched at once, as nobody knows how long the others will go on; if it has started another
    /// program, that is measured when it is loaded.
    pub(super) async fn depart(&mut self, at: usize, exec: bool, out: &mut Output) -> Result<(), Stop> {
        let (format, measure) = (self.format(), self.plan.measure.clone());
        let Some(site) = self.sites.get_mut(at).filter(|_| self.plan.follows_anything()) else { return Ok(()) };
        if exec && self.plan.follows(Follow::Exec) {
            let (client, pid) = (site.client.clone(), site.enabled.pid);
            self.kin.starting.push(Starting { client, pid, until: Instant::now() + LOADING });
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

    /// Says how many were not measured.
    pub(super) fn tell_missed(&self) {
        if let Some(why) = &self.kin.why {
            output::warn(&words::missed_kin(self.kin.missed, why), self.format());
        }
    }
}
