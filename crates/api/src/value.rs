//! Values of a measurement.

use ingraft_model::{Activations, Distribution, Fold, KeyPart, KeyTable, ObjectState, Pid, TableKey, Tid};

use crate::ModulePlace;

/// The values of a measurement at one time, in the order of [`Enabled::pairs`](crate::Enabled::pairs).
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Unix time in nanoseconds.
    pub time_ns: u64,
    /// One value for each pair.
    pub values: Vec<Value>,
    /// End of the target; `None` if the target has not ended.
    pub ended: Option<Ended>,
}

/// A named span of the time of a measurement with histories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Number of the phase, from 0.
    pub number: u32,
    /// Name for the user; empty for phase 0.
    pub name: String,
    /// Start of the phase, as Unix time in nanoseconds.
    pub start_ns: u64,
    /// End of the phase and beginning of the next, as Unix time in nanoseconds; `None` for the current phase.
    pub end_ns: Option<u64>,
}

/// End of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Exit status; `None` if a signal killed the target, or if the target is not a child of the engine. Only a parent learns the status.
    pub status: Option<i32>,
    /// Number of the signal that killed the target; `None` if none did, or if the target is not a child of the engine.
    pub signal: Option<i32>,
    /// Whether the process continued as another program (exec); the measured program is gone.
    pub exec: bool,
}

/// The value of one pair. The type is small because there may be thousands of values, and most of them are mere numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// Cumulative value since the request; for a histogram, the number of its values.
    pub value: i64,
    /// Details of the value; never [`Details::NONE`].
    details: Option<Box<Details>>,
}

impl Value {
    /// A value with its details.
    pub fn new(value: i64, details: Details) -> Self {
        Value { value, details: (details != Details::NONE).then(|| Box::new(details)) }
    }

    /// Whether the value is more than a number.
    pub fn has_details(&self) -> bool {
        self.details.is_some()
    }

    /// Adds the values of further threads, which `other` has.
    pub fn add_threads(&mut self, other: Value) {
        let threads = other.details.map(|details| details.threads).unwrap_or_default();
        if !threads.is_empty() {
            self.details.get_or_insert_default().threads.extend(threads);
        }
    }

    /// Share of the time in which the event was counted; `None` if it was counted all the time.
    pub fn counted_share(&self) -> Option<f64> {
        let CountedTime { enabled_ns, running_ns } = self.details().counted?;
        Some(if enabled_ns == 0 { 0.0 } else { running_ns as f64 / enabled_ns as f64 })
    }

    /// Converts a value that was counted for a part of the time to an estimate for the whole time. An event that was never counted keeps
    /// its value.
    pub fn scale(&mut self) {
        let Some(details) = self.details.as_deref_mut() else { return };
        let Some(CountedTime { enabled_ns, running_ns }) = details.counted.filter(|c| c.running_ns > 0) else { return };
        let all = |value: i64| {
            let scaled = i128::from(value) * i128::from(enabled_ns) / i128::from(running_ns);
            i64::try_from(scaled).unwrap_or(i64::MAX)
        };
        self.value = all(self.value);
        details.threads.iter_mut().for_each(|thread| thread.value = all(thread.value));
    }

    /// Values of keys, for a vector.
    pub fn keys_mut(&mut self) -> impl Iterator<Item = &mut KeyValue> {
        self.details.iter_mut().filter_map(|details| details.keys.as_mut()).flat_map(|keys| &mut keys.values)
    }

    /// Details of the value.
    pub fn details(&self) -> &Details {
        static NONE: Details = Details::NONE;
        self.details.as_deref().unwrap_or(&NONE)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Value { value, details: None }
    }
}

/// Details of a value besides its number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Distribution of a histogram's values, in the metric's unit.
    pub distribution: Option<Box<Distribution>>,
    /// Values by key, for a vector.
    pub keys: Option<Keys>,
    /// State of the object that the focus names; `None` unless a list of objects that contains it is measured in the target.
    pub object: Option<ObjectState>,
    /// Numbers of calls whose values are missing.
    pub activations: Activations,
    /// Values of each thread, including ended ones. Empty unless asked for.
    pub threads: Vec<ThreadValue>,
    /// Set if the code of the pair was taken out; the value has not changed since.
    pub taken_out: Option<TakenOut>,
    /// Set if the event was counted for a part of the time only.
    pub counted: Option<CountedTime>,
    /// Time in nanoseconds that the machine has slept while the time stamp counter timed the value. The counter may have counted that time
    /// or restarted.
    pub slept_ns: u64,
}

impl Details {
    /// Details of a value that is only a number.
    pub const NONE: Details = Details {
        distribution: None,
        keys: None,
        object: None,
        activations: Activations { left: 0, unseen: 0, unrecorded: 0, left_by_tail_jump: 0 },
        threads: Vec::new(),
        taken_out: None,
        counted: None,
        slept_ns: 0,
    };
}

/// The value of one pair in one thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadValue {
    /// Thread id; `None` for threads that could not be told apart.
    pub tid: Option<Tid>,
    /// Process of the thread if the thread belongs to a fork child; `None` for the target, or for a child that ended before it was noticed.
    pub pid: Option<Pid>,
    /// Cumulative value since the request; for a histogram, the number of its values.
    pub value: i64,
    /// Distribution of a histogram's values, in the metric's unit.
    pub distribution: Option<Box<Distribution>>,
    /// Numbers of calls whose values are missing.
    pub activations: Activations,
}

/// Values by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// Values of keys, the largest first, at most [`Keys::MAX`].
    pub values: Vec<KeyValue>,
    /// Sum of all other keys: those beyond [`Keys::MAX`], and those for which a thread's table had no place.
    pub others: i64,
    /// For a list of objects, the number of operations on objects for which a thread's table had no place. Such objects may be missing
    /// here.
    pub unlisted: u64,
}

impl Keys {
    /// Largest number of keys in an answer.
    pub const MAX: usize = 1000;
}

impl From<&KeyTable> for Keys {
    fn from(table: &KeyTable) -> Self {
        let (mut values, others, unlisted): (Vec<KeyValue>, i64, u64) = match table.fold {
            Fold::Sum => {
                let each = |(key, &value): (&TableKey, &i64)| KeyValue { value, ..key.into() };
                (table.values.iter().map(each).collect(), table.others, 0)
            }
            Fold::Last => {
                let each = |(key, state): (u64, ObjectState)| KeyValue {
                    key,
                    value: i64::from(!state.retired),
                    object: Some(state),
                    ..KeyValue::default()
                };
                (table.states().map(each).collect(), 0, table.others.cast_unsigned())
            }
        };
        // Keys of one value stay in their order.
        values.sort_by_key(|v| (std::cmp::Reverse(v.value), v.object));
        let beyond = values.split_off(values.len().min(Keys::MAX));
        Keys { values, others: beyond.iter().fold(others, |sum, v| sum.wrapping_add(v.value)), unlisted }
    }
}

/// The value of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyValue {
    /// The key, as a number that the code computed; 0 if `parts` has the key.
    pub key: u64,
    /// Parts of a key that is a text or has several values; empty if the key is one number.
    pub parts: Vec<NamedPart>,
    /// The variable or function at whose address, or inside of which, the key points: `lock`, `file.c:lock+0x28`, `libx:lock`, `main+0x1a`.
    pub name: Option<String>,
    /// Name of the enumerator that the key is; `None` if the keys are no enumeration, or no enumerator has the value.
    pub enumerator: Option<String>,
    /// The code to which the key points, if it is an address of code. For a return address, the place of the call.
    pub place: Option<Box<ModulePlace>>,
    /// Cumulative value since the request; in a list of objects 1, and 0 once the object is retired.
    pub value: i64,
    /// State of the object at this address; `None` unless a list of objects that contains it is measured in the target.
    pub object: Option<ObjectState>,
}

/// A part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPart {
    /// The part.
    pub part: KeyPart,
    /// Name of a number, as [`KeyValue::name`].
    pub name: Option<String>,
    /// Name of the enumerator that a number is, as [`KeyValue::enumerator`].
    pub enumerator: Option<String>,
    /// The code to which a number points, as [`KeyValue::place`].
    pub place: Option<Box<ModulePlace>>,
}

impl From<&TableKey> for KeyValue {
    /// The key without its value and names.
    fn from(key: &TableKey) -> Self {
        match key {
            TableKey::Number(key) => KeyValue { key: *key, ..KeyValue::default() },
            TableKey::Parts(parts) => {
                let named =
                    |part: &KeyPart| NamedPart { part: part.clone(), name: None, enumerator: None, place: None };
                KeyValue { parts: parts.iter().map(named).collect(), ..KeyValue::default() }
            }
        }
    }
}

impl KeyValue {
    /// Whether two values are those of one key; names do not count.
    pub fn is_of_key(&self, other: &KeyValue) -> bool {
        let mut pairs = self.parts.iter().zip(&other.parts);
        self.key == other.key && self.parts.len() == other.parts.len() && pairs.all(|(a, b)| a.part == b.part)
    }

    /// The numbers of the key, whose names can be set.
    pub fn numbers_mut(&mut self) -> impl Iterator<Item = KeyNumber<'_>> {
        let KeyValue { key, parts, name, enumerator, place, .. } = self;
        let alone = parts.is_empty().then_some(KeyNumber { part: 0, number: *key, name, enumerator, place });
        let of_parts = parts.iter_mut().enumerate().filter_map(|(n, part)| match part.part {
            KeyPart::Number(number) => {
                let NamedPart { name, enumerator, place, .. } = part;
                Some(KeyNumber { part: n, number, name, enumerator, place })
            }
            KeyPart::Text { .. } | KeyPart::Unreadable => None,
        });
        alone.into_iter().chain(of_parts)
    }
}

/// A number in a key, and its names.
#[derive(Debug)]
pub struct KeyNumber<'a> {
    /// Position of the part in the key, from 0.
    pub part: usize,
    /// The number.
    pub number: u64,
    /// Name of the number, as [`KeyValue::name`].
    pub name: &'a mut Option<String>,
    /// Name of the enumerator that it is, as [`KeyValue::enumerator`].
    pub enumerator: &'a mut Option<String>,
    /// The code to which it points, as [`KeyValue::place`].
    pub place: &'a mut Option<Box<ModulePlace>>,
}

/// Time for which an event was counted. Events that share the processor's counters are counted in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedTime {
    /// Time in nanoseconds in which threads ran while the event was to be counted.
    pub enabled_ns: u64,
    /// Part of that time, in nanoseconds, in which the event was counted.
    pub running_ns: u64,
}

/// Details about the removal of a pair's code. The pair cost more than allowed, the program uses the gs base, by which code finds its
/// counters, or the program has changed a function that ran as a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenOut {
    /// Unix time in nanoseconds of the removal.
    pub time_ns: u64,
    /// Runs of the pair's code per second; of several snippets, those of the one that ran most often.
    pub hits_per_s: u64,
    /// Cost in nanoseconds of processor time per second (ten million are one percent of a processor).
    pub cost_ns_per_s: u64,
    /// Limit of the cost of the pair's measurement, in the same unit.
    pub limit_ns_per_s: u64,
    /// Whether the reason was a library or a signal handler beside which woven code must not run: the library uses the gs base itself, or
    /// unwinders may begin at any instruction, or the handler may end its thread. The costs are 0 then.
    pub own_gs: bool,
    /// Whether the reason was that the program has changed the code of a function that ran as a copy; the costs are 0 then.
    pub rewritten: bool,
}

impl TakenOut {
    /// A removal at this Unix time in nanoseconds for which the cost was no reason.
    pub fn free(time_ns: u64) -> Self {
        TakenOut { time_ns, hits_per_s: 0, cost_ns_per_s: 0, limit_ns_per_s: 0, own_gs: false, rewritten: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_in_a_part_of_the_time_is_scaled() {
        let thread = ThreadValue { value: 5, ..ThreadValue::default() };
        let value = |counted| Value::new(10, Details { threads: vec![thread.clone()], counted, ..Details::default() });
        let counted = |enabled_ns, running_ns| value(Some(CountedTime { enabled_ns, running_ns }));
        let scaled = |mut value: Value| {
            value.scale();
            (value.value, value.details().threads[0].value, value.counted_share())
        };
        assert_eq!(scaled(counted(400, 100)), (40, 20, Some(0.25)));
        assert_eq!(scaled(counted(400, 0)), (10, 5, Some(0.0)));
        assert_eq!(scaled(counted(u64::MAX, 1)).0, i64::MAX);
        assert_eq!(scaled(value(None)), (10, 5, None));
    }

    #[test]
    fn threads_are_added_to_a_value() {
        let thread = |tid| ThreadValue { tid: Some(Tid(tid)), ..ThreadValue::default() };
        let of = |tid| Value::new(1, Details { threads: vec![thread(tid)], ..Details::default() });
        let mut value = Value::from(1);
        value.add_threads(Value::from(1));
        assert!(!value.has_details());
        value.add_threads(of(2));
        value.add_threads(of(3));
        assert_eq!(value.details().threads, [thread(2), thread(3)]);
    }
}
