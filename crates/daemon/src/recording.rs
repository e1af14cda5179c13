//! Histories of the values of one measurement. Each pair has one for the whole time, and one for each phase.

use std::collections::VecDeque;

use ingraft_api::Phase;
use ingraft_model::{Course, History, Style};

/// Maximum number of histories of one measurement. If its phases need more, the oldest phases are deleted. A history takes at most 32 KiB.
pub const HISTORIES_MAX: usize = 4096;

/// Maximum number of pairs of a measurement with histories. Each pair needs two: for the whole time and for the current phase.
pub const PAIRS_MAX: usize = HISTORIES_MAX / 2;

/// A phase and its histories, one for each pair.
#[derive(Debug)]
struct RecordedPhase {
    phase: Phase,
    histories: Vec<History>,
}

/// The histories of a measurement.
#[derive(Debug)]
pub struct Recording {
    courses: Vec<Course>,
    whole: Vec<History>,
    ended: VecDeque<RecordedPhase>,
    current: RecordedPhase,
    /// Time of the latest reading, as Unix time in nanoseconds, and the value of each pair in it.
    latest: (u64, Vec<i64>),
}

/// Returns the kind of history for the values of a metric of this style.
pub fn course(style: Style) -> Course {
    match style {
        Style::EventCounter => Course::Total,
        Style::SampledFunction => Course::Level,
    }
}

impl Recording {
    /// Begins a recording at `now_ns` (Unix time in nanoseconds), with the value 0 for all pairs.
    pub fn begin(courses: Vec<Course>, now_ns: u64) -> Recording {
        let latest = (now_ns, vec![0; courses.len()]);
        let whole = fresh(&courses, &latest);
        let phase = Phase { number: 0, name: String::new(), start_ns: now_ns, end_ns: None };
        Recording {
            current: RecordedPhase { phase, histories: whole.clone() },
            whole,
            ended: VecDeque::new(),
            courses,
            latest,
        }
    }

    /// Returns the number of pairs in the recording.
    pub fn pairs(&self) -> usize {
        self.courses.len()
    }

    /// Returns the number of histories in the recording.
    pub fn histories_kept(&self) -> usize {
        self.courses.len() * (self.ended.len() + 2)
    }

    /// Returns how many more histories the recording has after one more phase begins: 0 if the oldest phase is deleted for it.
    pub fn phase_needs(&self) -> usize {
        if self.ended.len() + 3 > self.room() { 0 } else { self.courses.len() }
    }

    /// Deletes the histories of the oldest phase that has ended. Returns false if no phase has ended.
    pub fn forget_oldest(&mut self) -> bool {
        self.ended.pop_front().is_some()
    }

    /// Returns the maximum number of histories of each pair, including that of the whole time.
    fn room(&self) -> usize {
        (HISTORIES_MAX / self.courses.len().max(1)).max(2)
    }

    /// Adds pairs, with the value 0 until the latest reading.
    pub fn grow(&mut self, courses: &[Course]) {
        let now_ns = self.latest.0;
        self.courses.extend(courses);
        self.latest.1.resize(self.courses.len(), 0);
        let joins = |start_ns, course: &Course| History::new(*course, start_ns, now_ns, 0);
        let (whole, current) = (self.whole_start(), self.current.phase.start_ns);
        self.whole.extend(courses.iter().map(|course| joins(whole, course)));
        self.current.histories.extend(courses.iter().map(|course| joins(current, course)));
    }

    fn whole_start(&self) -> u64 {
        self.whole.first().map_or(self.latest.0, History::start_ns)
    }

    /// Adds a reading of all pairs. Ignores a reading that is not later than the latest, or that has another number of pairs.
    pub fn record(&mut self, now_ns: u64, values: Vec<i64>) {
        if now_ns <= self.latest.0 || values.len() != self.courses.len() {
            return;
        }
        for (i, value) in values.iter().enumerate() {
            for history in [&mut self.whole, &mut self.current.histories] {
                history[i].record(now_ns, *value);
            }
        }
        self.latest = (now_ns, values);
    }

    /// Ends the current phase at the latest reading and begins the next one there.
    pub fn start_phase(&mut self, name: String) -> Phase {
        let now_ns = self.latest.0;
        let phase = Phase { number: self.current.phase.number.saturating_add(1), name, start_ns: now_ns, end_ns: None };
        let next = RecordedPhase { phase: phase.clone(), histories: fresh(&self.courses, &self.latest) };
        let mut over = std::mem::replace(&mut self.current, next);
        over.phase.end_ns = Some(now_ns);
        over.histories.iter_mut().for_each(History::close);
        self.ended.push_back(over);
        while self.ended.len() + 2 > self.room() {
            self.ended.pop_front();
        }
        phase
    }

    /// Returns the phases with histories; the current one comes last.
    pub fn phases(&self) -> Vec<Phase> {
        self.ended.iter().chain([&self.current]).map(|chapter| chapter.phase.clone()).collect()
    }

    /// Returns the histories of all pairs, for a phase or for the whole time. `None` if the phase does not exist or was deleted.
    pub fn histories(&self, phase: Option<u32>) -> Option<&[History]> {
        let Some(number) = phase else { return Some(&self.whole) };
        let chapter = self.ended.iter().chain([&self.current]).find(|chapter| chapter.phase.number == number)?;
        Some(&chapter.histories)
    }
}

/// Returns new histories that begin at a reading.
fn fresh(courses: &[Course], (now_ns, values): &(u64, Vec<i64>)) -> Vec<History> {
    courses.iter().zip(values).map(|(course, value)| History::new(*course, *now_ns, *now_ns, *value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ingraft_model::history::INTERVAL_NS as I;

    fn sums(recording: &Recording, phase: Option<u32>) -> Vec<i64> {
        recording.histories(phase).unwrap().iter().map(History::sum).collect()
    }

    #[test]
    fn phases_share_out_what_the_whole_has() {
        let mut recording = Recording::begin(vec![Course::Total, Course::Total], 0);
        recording.record(4 * I + 5, vec![40, 4]);
        assert_eq!(recording.start_phase("load".into()).number, 1);
        recording.record(6 * I + 5, vec![60, 4]);
        assert_eq!(sums(&recording, Some(0)), [40, 4]);
        assert_eq!(sums(&recording, Some(1)), [20, 0]);
        recording.record(7 * I, vec![60, 4]);
        assert_eq!(sums(&recording, None), [60, 4]);
        let phases = recording.phases();
        assert_eq!((phases[0].end_ns, phases[1].end_ns), (Some(4 * I + 5), None));
        assert_eq!(phases[1].name, "load");
        assert!(recording.histories(Some(2)).is_none());
    }

    #[test]
    fn pairs_that_join_begin_where_they_joined() {
        let mut recording = Recording::begin(vec![Course::Total], 0);
        recording.record(2 * I, vec![2]);
        recording.grow(&[Course::Total]);
        recording.record(4 * I, vec![4, 10]);
        assert_eq!(sums(&recording, None), [4, 10]);
        let joined = &recording.histories(None).unwrap()[1];
        assert_eq!(joined.start_ns(), 0, "bins of all pairs can be compared");
        assert_eq!(joined.bins()[0].intervals, 0);
    }

    #[test]
    fn old_phases_are_forgotten_before_memory_grows() {
        let mut recording = Recording::begin(vec![Course::Total; PAIRS_MAX / 4], 0);
        for n in 1..100 {
            recording.record(n * I, vec![0; PAIRS_MAX / 4]);
            recording.start_phase(String::new());
        }
        let phases = recording.phases();
        assert_eq!(phases.len(), 7, "with the whole one eight of each pair");
        assert_eq!(phases.last().unwrap().number, 99);
    }

    #[test]
    fn a_reading_of_other_pairs_is_left_out() {
        let mut recording = Recording::begin(vec![Course::Total], 0);
        recording.record(I, vec![1, 2]);
        recording.record(0, vec![5]);
        assert_eq!(sums(&recording, None), [0]);
    }
}
