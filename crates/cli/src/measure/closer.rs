//! A closer look: once the profile of a target has told what is worth it, a further measurement is inserted beside the profile.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::conn::RequestTarget;
use crate::exit::Stop;
use crate::output::progress::Progress;
use crate::output::{self, Output};

use super::{MeasurementRun, MeasurementView, StreamArrival, flags};

/// Time before the profile of a target is read first.
const FIRST: Duration = Duration::from_secs(1);
/// Largest part of the measurement after which the first reading comes: one fourth.
const FIRST_PART: u32 = 4;
/// Part of the measurement after which the latest reading comes: one half.
const LATEST_PART: u32 = 2;
/// Longest time between two readings.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Times at which the profiles of targets are read.
#[derive(Clone, Debug)]
pub(crate) struct CloserLook {
    pause: Duration,
    /// Time from the beginning to the latest reading; `None` if the measurement has no end.
    latest: Option<Duration>,
    next: Instant,
    /// Time of the latest reading.
    until: Option<Instant>,
    /// Indexes of the targets that have been looked at closer.
    done: BTreeSet<usize>,
}

impl CloserLook {
    /// Looks during a measurement of this duration; `None` if it has no end.
    pub(crate) fn new(duration: Option<Duration>) -> Self {
        let pause = duration.map_or(FIRST, |duration| FIRST.min(duration / FIRST_PART));
        let latest = duration.map(|duration| duration / LATEST_PART);
        CloserLook { pause, latest, next: Instant::now(), until: None, done: BTreeSet::new() }
    }

    /// The same for a measurement that begins at this time.
    pub(super) fn begun(self, now: Instant) -> Self {
        CloserLook { next: now + self.pause, until: self.latest.map(|latest| now + latest), ..self }
    }

    /// Time of the next reading.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    fn is_latest(&self) -> bool {
        self.until.is_some_and(|until| self.next >= until)
    }

    /// Plans the reading after the present one, which ends at this time. `None` after the latest.
    fn after(self, now: Instant) -> Option<Self> {
        if self.is_latest() {
            return None;
        }
        let pause = (self.pause * 2).min(PAUSE_MAX);
        let next = self.next.max(now) + pause;
        Some(CloserLook { pause, next: self.until.map_or(next, |until| next.min(until)), ..self })
    }
}

impl MeasurementRun<'_> {
    /// Reads the profiles of all targets that were not looked at closer yet, and inserts what the view asks for. Returns the next look.
    pub(super) async fn look_closer(
        &mut self,
        look: Option<(CloserLook, mpsc::Sender<StreamArrival>)>,
        view: &mut dyn MeasurementView,
        out: &mut Output,
    ) -> Result<Option<(CloserLook, mpsc::Sender<StreamArrival>)>, Stop> {
        let Some((mut look, events)) = look else { return Ok(None) };
        let (format, is_latest) = (self.format(), look.is_latest());
        for at in 0..self.sites.len() {
            let Some(site) = self.sites.get_mut(at).filter(|site| site.goes_on() && !site.is_beside) else { continue };
            if look.done.contains(&at) {
                continue;
            }
            // A target that has ended meanwhile has no profile, which its removal tells.
            let Ok(profile) = site.client.profile(site.enabled.id).await else { continue };
            site.profile = Some(profile);
            let (client, pid) = (site.client.clone(), site.pid());
            let requests = view.closer(&self.sites, at, is_latest);
            if !requests.is_empty() {
                look.done.insert(at);
            }
            for own in requests {
                let request = flags::request(RequestTarget::Pid(pid), &self.plan.measure, own);
                let mut progress = Progress::new("reading the program", format);
                let made = client.enable(&request, &mut progress).await;
                drop(progress);
                match made {
                    Ok(made) => {
                        self.add(made, &events, out)?;
                        self.sites.iter_mut().last().into_iter().for_each(|site| site.is_beside = true);
                    }
                    Err(failure) => output::warn(&format!("process {pid} is only profiled: {failure}"), format),
                }
            }
        }
        Ok(look.after(Instant::now()).map(|look| (look, events)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_look_is_in_the_middle() {
        let begin = Instant::now();
        let mut look = Some(CloserLook::new(Some(Duration::from_secs(40))).begun(begin));
        let mut at = Vec::new();
        while let Some(now) = look {
            at.push((now.next() - begin).as_secs());
            assert_eq!(now.is_latest(), at.last() == Some(&20));
            let next = now.next();
            look = now.after(next);
        }
        assert_eq!(at, [1, 3, 7, 15, 20]);
        assert_eq!(CloserLook::new(Some(Duration::from_millis(400))).pause, Duration::from_millis(100));
        assert!(!CloserLook::new(None).begun(begin).is_latest());
    }
}
