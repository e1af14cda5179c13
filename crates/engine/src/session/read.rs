//! Values, read while the target runs, and what has to be done for them from time to time.

use super::*;

impl Session {
    /// What a measurement reads, with where its counters stand now.
    pub(super) fn views(&self, control: &Control, keys: &[(PairKey, Option<MdlFunction>)]) -> Vec<View> {
        let shared = self.shared();
        let columns = shared.columns();
        keys.iter()
            .filter_map(|(key, _)| {
                let pair = control.pairs.get(key)?;
                let counter = *pair.counters.first()?;
                let joined = pair.users > 0;
                let before = columns.as_ref().filter(|_| joined).map(|c| c.threads(counter).into_iter().collect());
                Some(View {
                    key: key.clone(),
                    counter,
                    aggregate: pair.metric.aggregate,
                    thread: pair.thread,
                    before: before.unwrap_or_default(),
                })
            })
            .collect()
    }

    /// Reads the values of a measurement; the target goes on.
    pub fn read(&self, id: MeasurementId, threads: bool) -> Result<Reading, Error> {
        let views =
            self.control().measurements.get(&id).map(|m| Arc::clone(&m.views)).ok_or_else(|| no_measurement(id))?;
        Ok(self.reading(&views, threads))
    }

    pub(super) fn reading(&self, views: &[View], threads: bool) -> Reading {
        // The end is looked up first: values read after it are the last ones.
        let ended = self.ended.get().copied();
        let shared = self.shared();
        let values = match shared.columns() {
            Some(columns) => views.iter().map(|view| view.value(&columns, threads)).collect(),
            None => views.iter().map(|_| Value::default()).collect(),
        };
        Reading { time_ns: now_ns(), values, ended }
    }

    /// Waits a little for the end of the target, and does what has to be done from time to time. `false`: the target is gone.
    pub fn watch(&self, at_most: Duration) -> bool {
        if let Some(status) = self.target.wait_exit(at_most) {
            let (status, signal) = match status {
                ExitStatus::Code(code) => (Some(code), None),
                ExitStatus::Signal(signal) => (None, Some(signal)),
                ExitStatus::Unknown => (None, None),
            };
            let _ = self.ended.set(Ended { status, signal, exec: false });
            return false;
        }
        if !self.target.is_same_program() {
            let _ = self.ended.set(Ended { status: None, signal: None, exec: true });
            return false;
        }
        self.bury_ended_threads();
        true
    }

    /// Frees the shards of threads that have ended.
    pub(super) fn bury_ended_threads(&self) {
        let mut shared = self.shared_mut();
        let shared = &mut *shared;
        // An fs base may belong to the next thread already: its shard is simply used again.
        let (Some(area), Some(ThreadIdentity::FsOffset(_))) = (shared.area.clone(), shared.identity) else { return };
        let claims = Shards::claims(&*area);
        if claims.is_empty() {
            return;
        }
        let Ok(live) = self.target.threads() else { return };
        let own_namespace = self.target.status().is_ok_and(|s| s.own_id == self.pid().0);
        let mut living = HashSet::new();
        for tid in live {
            let id = if own_namespace {
                tid.0
            } else if let Some((id, _)) = shared.tids.iter().find(|(_, known)| **known == tid) {
                *id as i32
            } else {
                self.target.thread_status(tid).map_or(tid.0, |s| s.own_id)
            };
            let id = id as u64;
            shared.tids.insert(id, tid);
            living.insert(id);
        }
        // Counters are handed out from 0 on.
        let used = shared.used_counters;
        for (shard, identity) in claims {
            if !living.contains(&identity) {
                let tid = shared.tids.get(&identity).copied().or(own_namespace.then_some(Tid(identity as i32)));
                shared.ended.bury(&*area, shard, tid, used);
            }
        }
        shared.tids.retain(|id, _| living.contains(id));
    }

    pub(super) fn shared(&self) -> RwLockReadGuard<'_, Shared> {
        self.shared.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn shared_mut(&self) -> RwLockWriteGuard<'_, Shared> {
        self.shared.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    pub(super) fn columns(&self) -> Option<Columns<'_>> {
        let area = self.area.as_deref()?;
        let by_id = matches!(self.identity, Some(ThreadIdentity::FsOffset(_)));
        let tid = |identity: u64| self.tids.get(&identity).copied().or(by_id.then_some(Tid(identity as i32)));
        Some(Columns::new(area, &self.ended, &tid))
    }

    /// Which thread has which thread pointer, if that is how they are told apart.
    pub(super) fn remember(&mut self, threads: &[ThreadBase], identity: ThreadIdentity) {
        if identity == ThreadIdentity::FsBase {
            self.tids.extend(threads.iter().map(|t| (t.fs_base, t.tid)));
        }
    }
}

impl View {
    fn value(&self, columns: &Columns<'_>, threads: bool) -> Value {
        let alone = self.before.is_empty() && self.thread.is_none() && self.aggregate == Aggregate::Sum;
        if alone && !threads {
            return Value { value: columns.sum(self.counter), ..Value::default() };
        }
        let mut all = columns.threads(self.counter);
        for (tid, value) in &mut all {
            *value = value.wrapping_sub(self.before.get(tid).copied().unwrap_or(0));
        }
        all.retain(|(tid, value)| *value != 0 && self.thread.is_none_or(|only| *tid == Some(only)));
        let values = all.iter().map(|(_, v)| *v);
        let value = match self.aggregate {
            Aggregate::Sum => values.fold(0, i64::wrapping_add),
            Aggregate::Min => values.min().unwrap_or(0),
            Aggregate::Max => values.max().unwrap_or(0),
            Aggregate::Avg => {
                let n = all.len().max(1) as i64;
                values.fold(0, i64::wrapping_add) / n
            }
        };
        let all = all.into_iter().map(|(tid, value)| ThreadValue { tid, value, ..ThreadValue::default() });
        Value { value, threads: if threads { all.collect() } else { Vec::new() }, ..Value::default() }
    }
}
