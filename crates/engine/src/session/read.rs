//! Values, read while the target runs, and the periodic work for them.

use std::ops::Deref;
use std::sync::Arc;

use ingraft_model::{Activations, Aggregate, FunctionId, Shape, ValueNames, ValueUnit};
use rustc_hash::FxHashMap;

use crate::api::{Details, KeyNumber, KeyValue, MeasurementId, Reading, Value};
use crate::error::{Error, Reason};
use crate::pairs::PairKey;
use crate::program::code_places::NamedPlace;
use crate::readings::values::{Raw, Slots};

use super::clocks::now_ns;
use super::control::Control;
use super::driver::Session;
use super::errors::no_measurement;
use super::internals::{CodelessPair, CodelessValue};
use super::view::{OwnValue, Plain, View, Views};

impl Session {
    /// Views of pairs, with the present values of their counters.
    pub(super) fn views(&self, control: &Control, keys: &[(PairKey, Option<FunctionId>)]) -> Vec<View> {
        let shared = self.shared();
        let columns = shared.columns();
        keys.iter()
            .filter_map(|(key, _)| {
                let pair = control.pairs.get(key)?;
                let (value, activations, unit) = pair.value()?;
                let joined = columns.as_ref().filter(|_| pair.users > 0);
                let (now, cpu) = (|| self.clocks.now(), |tid| self.clocks.cpu_ticks(&self.target, tid));
                let ruler = self.clocks.ruler(unit, &now, &cpu);
                let before = joined.map(|c| c.threads(value, &activations, ruler).into_iter().collect());
                Some(View {
                    key: key.clone(),
                    value,
                    activations,
                    owner: control.pairs.group_of(pair).map(|group| group.first),
                    unit,
                    aggregate: pair.metric.aggregate,
                    thread: pair.thread,
                    object: pair.object,
                    index_names: pair.index_names.clone(),
                    key_names: pair.key_names.clone(),
                    own: None,
                    before: before.unwrap_or_default(),
                })
            })
            .collect()
    }

    /// Views of pairs that need no code; events are counted from now on.
    pub(super) fn internal_views(&self, own: &[CodelessPair]) -> Result<Vec<View>, Error> {
        let shared = self.shared();
        let view = |(_, key, known): &CodelessPair| {
            let mut view = View {
                key: key.clone(),
                // no counter, as nothing in the target has the value
                value: Slots { first: u32::MAX, shape: Shape::Counter },
                activations: Vec::new(),
                owner: None,
                unit: ValueUnit::Plain,
                aggregate: Aggregate::Sum,
                thread: None,
                object: None,
                index_names: None,
                key_names: Vec::new(),
                own: None,
                before: FxHashMap::default(),
            };
            match known {
                CodelessValue::Internal(which) => {
                    let value = if which.adds_up() { self.internal(*which, &shared) } else { 0 };
                    view.before.insert(None, Raw { value, ..Raw::default() });
                    view.own = Some(OwnValue::Internal(*which));
                }
                CodelessValue::Event(wish) => {
                    view.aggregate = wish.metric.aggregate;
                    view.thread = wish.thread();
                    view.own = Some(OwnValue::Events(wish.begin(&self.target)?));
                }
            }
            Ok(view)
        };
        own.iter().map(view).collect()
    }

    /// Reads the values of a measurement while the target runs.
    pub fn read(&self, id: MeasurementId, threads: bool) -> Result<Reading, Error> {
        let views =
            self.control().measurements.get(&id).map(|m| Arc::clone(&m.views)).ok_or_else(|| no_measurement(id))?;
        let mut reading = self.reading(&views, threads);
        self.name_code(|| Some(self.control()), &views, &mut reading);
        if self.shared().area().is_some_and(|area| area.is_broken()) {
            let what = "memory that is shared with this process could not be read: its values are lost";
            let hint = "look for memory limits and hardware errors in the kernel's log, and begin another measurement";
            return Err(Error::new(Reason::AreaBroken, what, hint).about(self.pid()));
        }
        Ok(reading)
    }

    /// Names the keys of tables that are addresses of code and no variables. Code that is not known yet is looked up if `control` gives the
    /// state of the driver.
    pub(super) fn name_code<C: Deref<Target = Control>>(
        &self,
        control: impl FnOnce() -> Option<C>,
        views: &Views,
        reading: &mut Reading,
    ) {
        let unknown = self.code_places().unknown(unnamed(views, reading).map(|key| key.number));
        if !unknown.is_empty()
            && let Some(control) = control()
        {
            self.code_places().learn(&self.target, &control.modules, &self.context.images, &unknown);
        }
        let places = self.code_places();
        for key in unnamed(views, reading) {
            if let Some(NamedPlace { name, place }) = places.get(key.number) {
                *key.name = Some(name.clone());
                *key.place = Some(Box::new(place.clone()));
            }
        }
    }

    pub(super) fn reading(&self, views: &Views, threads: bool) -> Reading {
        // The end is looked up first, so that values read after a known end are the last ones.
        let ended = self.end.get();
        if ended.is_none() {
            if !self.target.is_alive() {
                self.stop_the_clock();
            } else if self.misses_threads() {
                self.retire_ended_threads();
            }
        }
        let shared = self.shared();
        let columns = shared.columns();
        let (now, cpu) = (|| self.clocks.now(), |tid| self.clocks.cpu_ticks(&self.target, tid));
        let slept_ns = self.clocks.slept_ns();
        let objects = columns.as_ref().map(|columns| shared.objects(columns)).unwrap_or_default();
        let value = |view: &View| {
            let (value, mut details) = match (&view.own, shared.frozen().get(view.value.first), &columns) {
                (Some(OwnValue::Internal(internal)), ..) => {
                    let before = view.before.get(&None).map_or(0, |before| before.value);
                    (self.internal(*internal, &shared).wrapping_sub(before), Details::NONE)
                }
                (Some(OwnValue::Events(counting)), ..) => {
                    let (rows, counted) = counting.rows();
                    let (value, details) = view.combined(rows, threads);
                    (value, Details { counted, ..details })
                }
                (None, Some(frozen), _) => {
                    let (value, details) = view.combined(frozen.rows.iter().cloned(), threads);
                    (value, Details { taken_out: Some(frozen.why), ..details })
                }
                (None, None, Some(columns)) => {
                    let rows = columns.threads(view.value, &view.activations, self.clocks.ruler(view.unit, &now, &cpu));
                    view.combined(rows.into_iter(), threads)
                }
                (None, None, None) => return 0.into(),
            };
            if view.unit == ValueUnit::Ticks {
                details.slept_ns = slept_ns;
            }
            details.object = view.object.and_then(|at| objects.get(&at).copied());
            for key in details.keys.iter_mut().flat_map(|keys| &mut keys.values) {
                if matches!(view.value.shape, Shape::Vector(_)) {
                    key.name = view.index_names.as_ref().and_then(|names| names.name(key.key));
                    continue;
                }
                for KeyNumber { part, number, name, enumerator, .. } in key.numbers_mut() {
                    match view.key_names.get(part) {
                        Some(ValueNames::Of(names)) => *enumerator = names.name(number).map(str::to_owned),
                        _ => *name = shared.symbols().name(number),
                    }
                }
                let object = objects.get(&key.key).filter(|_| key.parts.is_empty());
                key.object = key.object.or_else(|| object.copied());
            }
            for thread in &mut details.threads {
                thread.pid = thread.tid.and_then(|tid| shared.roster().children().process_of(tid));
            }
            Value::new(value, details)
        };
        let values = match &columns {
            Some(columns) if !threads && shared.frozen().is_empty() => {
                let plain = |(view, plain): (&View, &Plain)| match *plain {
                    Plain::Counter(counter) => columns.sum(counter).into(),
                    Plain::Number(slots, unit, calls) => {
                        let ruler = self.clocks.ruler(unit, &now, &cpu);
                        let (value, activations) = columns.together(slots, views.calls(calls), ruler);
                        let slept_ns = if unit == ValueUnit::Ticks { slept_ns } else { 0 };
                        if activations == Activations::default() && slept_ns == 0 {
                            return value.into();
                        }
                        Value::new(value, Details { activations, slept_ns, ..Details::NONE })
                    }
                    Plain::No => value(view),
                };
                views.iter().zip(views.plain()).map(plain).collect()
            }
            _ => views.iter().map(value).collect(),
        };
        Reading { time_ns: now_ns(), values, ended }
    }
}

/// The numbers in keys of tables that have no name.
fn unnamed<'a>(views: &Views, reading: &'a mut Reading) -> impl Iterator<Item = KeyNumber<'a>> {
    let tables = views.iter().zip(&mut reading.values).filter(|(view, _)| matches!(view.value.shape, Shape::Table(_)));
    let numbers = tables.flat_map(|(_, value)| value.keys_mut()).flat_map(KeyValue::numbers_mut);
    numbers.filter(|key| key.name.is_none() && key.enumerator.is_none())
}
