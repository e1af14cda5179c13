//! A dead engine's measurements that were to stay go on in a new one.

use ingraft_model::WallClock;
use ingraft_model::layout::header;

use super::*;
use crate::journal::Contents;

impl Session {
    /// Goes on with the measurements that a dead engine was to keep; `None` if there were none and the rest was removed.
    pub fn adopt(context: Context, target: Arc<Target>, library: &Arc<Library>) -> Result<Option<Self>, Error> {
        let pid = target.pid();
        let failed = |e| Error::process(pid, e);
        let areas = target.find_areas().map_err(failed)?;
        areas.iter().try_for_each(|range| leftover::refuse_held(&target, range))?;
        let lock = lock_target(&context, pid)?;
        let path = context.state.journal_path(pid, target.identity().start_time);
        let Some(range) = areas.into_iter().next() else {
            // It died between the journal's beginning and the target, or after it had removed everything.
            let _ = std::fs::remove_file(path);
            context.state.forget_lock(pid, lock);
            return Ok(None);
        };
        let found = leftover::open_area(&context.state, &target, &range)?;
        let Some(contents) = found.journal.filter(|j| !j.kept.is_empty()) else {
            leftover::restore_area(&context.state, &target, &range)?;
            context.state.forget_lock(pid, lock);
            return Ok(None);
        };
        let area = Arc::new(found.area);
        // The journal's copy was the target's to change: no more counters than a shard has room for.
        let contents = Contents { counters: contents.counters.min(area.layout().counters()), ..contents };
        if area.try_lock() == Some(false) {
            return Err(leftover::held(pid, "another ingraft"));
        }
        let text = journal::encode(&contents);
        let journal = Journal::replace(path, &text).map_err(|e| journal_error(pid, &e))?;
        area.write_journal(&text).map_err(failed)?;
        area.set_holder(&Identity::ours().map_err(failed)?).map_err(failed)?;
        // Whoever listened is dead. What it wove at the loader's hook says nothing to us.
        area.stop_listening().map_err(failed)?;
        let identity = area.identity().map_err(failed)?;
        let cpu = area.cpu_clock().map_err(failed)?;
        let family = area.is_family().map_err(failed)?;
        let rate = area.read_u64(header::CPU_RATE.into()).map_err(failed)?;
        let shadow_stack = target.status().map_err(failed)?.shadow_stack;
        let wall = area.wall_clock().map_err(failed)?;
        let mut session = Session::with_modules(context, target, lock)?;
        session.clock = Ok(if wall == WallClock::Tsc { TickClock::counter() } else { TickClock::monotonic(None) });
        if rate != 0 {
            session.cpu_rate.get_or_init(|| rate);
        }
        {
            let mut control = session.control();
            control.family = family;
            control.counters = CounterAllocator::starting_at(contents.counters);
            *session.shared_mut() = Shared {
                area: Some(Arc::clone(&area)),
                identity: Some(identity),
                used_counters: contents.counters,
                family,
                ..Shared::default()
            };
            for pair in contents.kept.iter().flat_map(|k| &k.pairs) {
                let shapes = &mut session.shared_mut().shapes;
                shapes.insert(pair.value.first, pair.value.shape);
                pair.activations.iter().for_each(|first| shapes.insert(*first & !RECORDS_ONLY, Shape::Activations));
            }
            for kept in contents.kept {
                control
                    .measurements
                    .insert(MeasurementId(kept.id), adopted(pid, library, kept.definitions, kept.pairs));
            }
            control.attached = Some(Attached {
                env: Environment {
                    data: area.layout(),
                    identity,
                    shadow_stack,
                    wall,
                    ticks: Scale::ONE,
                    cpu,
                    vectors: vector_state(),
                    readable: Readable::default(),
                    loader: None,
                },
                area,
                journal,
                woven: Woven::adopt(contents.points, contents.arenas),
                why_locked: None,
                since_ns: contents.head.since_ns,
                cpu_before: Duration::ZERO,
            });
        }
        Ok(Some(session))
    }
}

/// A kept measurement as a new engine sees it: its metric by name, its counters where they were.
fn adopted(pid: Pid, library: &Arc<Library>, definitions: Vec<(String, String)>, pairs: Vec<KeptPair>) -> Measurement {
    let unknown = |name: &str| MetricInfo {
        name: name.to_owned(),
        unit: String::new(),
        aggregate: Aggregate::Sum,
        style: Style::EventCounter,
        units_type: UnitsType::Unnormalized,
        constraints: Vec::new(),
        developer: false,
        doc: String::new(),
        text: Arc::default(),
    };
    let mut infos = Vec::with_capacity(pairs.len());
    let mut views = Vec::with_capacity(pairs.len());
    for pair in pairs {
        let metric = library.metric(&pair.metric).map_or_else(|| Arc::new(unknown(&pair.metric)), Arc::clone);
        let focus = Focus::parse(&pair.focus).unwrap_or_default();
        let measured = Arc::new(MetricFocus { metric: pair.metric, focus });
        let key = PairKey::new(Arc::default(), Arc::clone(&measured));
        let (aggregate, thread) = (metric.aggregate, None);
        let (value, activations) = (pair.value, pair.activations);
        let unit = if pair.ticks { ValueUnit::Ticks } else { ValueUnit::Plain };
        views.push(View {
            key,
            value,
            activations,
            unit,
            aggregate,
            thread,
            object: None,
            index_names: None,
            own: None,
            before: FxHashMap::default(),
        });
        infos.push(PairInfo {
            pair: measured,
            metric,
            function: pair.function.map(|(module, function, offset)| FunctionRef {
                module,
                function,
                offset: Svma(offset),
            }),
            points: pair.points,
            refused: Vec::new(),
            exact_since_ns: None,
        });
    }
    let request = EnableRequest {
        target: TargetSpec::Pid(pid),
        pairs: Vec::new(),
        functions: Vec::new(),
        function_metric: String::new(),
        definitions,
        keep: true,
        max_overhead: None,
        allow_calls: false,
        family: false,
    };
    // its code is not known well enough to be taken out piece by piece
    let limit = f64::INFINITY;
    let library = Arc::clone(library);
    Measurement {
        views: Arc::new(views.into()),
        pairs: Arc::new(infos),
        grown: false,
        request,
        library,
        keep: true,
        // its request is not known any more, so nothing is ever woven for it
        rights: Rights::All,
        revoked: false,
        limit,
    }
}
