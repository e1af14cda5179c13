//! Answers to requests for measurements, and descriptions of measurements. They are split into messages, and put together again.

use std::collections::BTreeMap;
use std::sync::Arc;

use ingraft_api::{Enabled, MeasurementId, MetricFocus, PairFacts, PairInfo, RefusedFunction};
use ingraft_model::{EdgeKind, HoldTime, MetricInfo, Pid};

use crate::MessageParts;
use crate::field::{FieldError, WireField, read};
use crate::function::{from_refused, to_refused};
use crate::v1;
use v1::describe_response::Event as Described;
use v1::enable_response::Event;

/// Splits the answer to an insertion: one `Enabled`, then the pairs and the refused functions.
pub fn enabled(enabled: Enabled) -> impl Iterator<Item = v1::EnableResponse> + Send + 'static {
    let Enabled { pairs, refused, .. } = enabled;
    let head = v1::Enabled {
        measurement: enabled.id.0,
        pid: enabled.pid.0,
        attached: enabled.attached,
        threads: enabled.threads,
        modules: enabled.modules,
        functions: enabled.functions,
        points: enabled.points,
        attach_ns: enabled.attach_time.to_wire(),
        stopped_ns: enabled.stopped.held.to_wire(),
        waited_ns: enabled.stopped.waited.to_wire(),
        warnings: enabled.warnings,
        caught_up: enabled.caught_up,
        not_unwound: enabled.not_unwound,
        since_ns: enabled.since_ns,
        parent: enabled.parent.0,
        title: enabled.title,
        ..counts(&pairs, &refused)
    };
    let first = std::iter::once(Event::Enabled(head));
    let all = first.chain(pair_chunks(Arc::clone(&pairs)).map(Event::Pairs));
    let all = all.chain(refused_chunks(pairs, refused).map(Event::Refused));
    all.map(|event| v1::EnableResponse { event: Some(event) })
}

/// Splits the description of a measurement: the messages of its insertion, with the fields that are still known.
pub fn description(
    id: MeasurementId,
    pid: Pid,
    pairs: Arc<Vec<PairInfo>>,
) -> impl Iterator<Item = v1::DescribeResponse> + Send + 'static {
    let points = pairs.iter().fold(0_u32, |sum, pair| sum.saturating_add(pair.points));
    let head = v1::Enabled { measurement: id.0, pid: pid.0, points, ..counts(&pairs, &[]) };
    let first = std::iter::once(Described::Enabled(head));
    let all = first.chain(pair_chunks(Arc::clone(&pairs)).map(Described::Pairs));
    let all = all.chain(refused_chunks(pairs, Vec::new()).map(Described::Refused));
    all.map(|event| v1::DescribeResponse { event: Some(event) })
}

/// The numbers of pairs and of refused functions, and the metrics of the pairs, each once, sorted by name.
fn counts(pairs: &[PairInfo], others: &[RefusedFunction]) -> v1::Enabled {
    let refused: usize = pairs.iter().map(|pair| pair.refused.len()).sum();
    let by_name: BTreeMap<_, _> = pairs.iter().map(|pair| (&pair.metric.name, &pair.metric)).collect();
    v1::Enabled {
        pair_count: pairs.len().to_wire(),
        refused_count: (refused + others.len()).to_wire(),
        metrics: by_name.into_values().map(|metric| metric.as_ref().clone().into()).collect(),
        ..v1::Enabled::default()
    }
}

fn pair_chunks(pairs: Arc<Vec<PairInfo>>) -> impl Iterator<Item = v1::PairChunk> + Send + 'static {
    let each = (0..pairs.len()).filter_map(move |n| pairs.get(n).map(pair));
    MessageParts::new(each).scan(0, |first, pairs| {
        let chunk = v1::PairChunk { first: *first, pairs };
        *first += WireField::<u32>::to_wire(chunk.pairs.len());
        Some(chunk)
    })
}

fn refused_chunks(
    pairs: Arc<Vec<PairInfo>>,
    others: Vec<RefusedFunction>,
) -> impl Iterator<Item = v1::RefusedChunk> + Send + 'static {
    let of_pairs = (0..pairs.len()).flat_map(move |n| {
        let refused = pairs.get(n).map_or(&[][..], |pair| pair.refused.as_slice());
        refused.iter().map(|refused| to_refused(refused.clone(), Some(n.to_wire()))).collect::<Vec<_>>()
    });
    let all = others.into_iter().map(|refused| to_refused(refused, None)).chain(of_pairs);
    MessageParts::new(all).map(|functions| v1::RefusedChunk { functions })
}

/// A pair, without its metric and its refused functions: other messages have these.
fn pair(info: &PairInfo) -> v1::Pair {
    let PairFacts { exact_since_ns, exposed } = info.facts;
    v1::Pair {
        pair: info.pair.as_ref().clone().to_wire(),
        function: info.function.clone().to_wire(),
        points: info.points,
        refused_count: info.refused.len().to_wire(),
        exact_since_ns,
        edge_kinds: info.edge_kinds.clone().to_wire(),
        exposed,
    }
}

/// Reads a pair; `metrics` are those of the measurement.
fn pair_info(pair: v1::Pair, metrics: &BTreeMap<String, Arc<MetricInfo>>) -> Result<PairInfo, FieldError> {
    let asked: Arc<MetricFocus> = read("pair", pair.pair)?;
    let metric =
        metrics.get(&asked.metric).ok_or_else(|| FieldError::new("pair.metric", "is no metric of the answer"))?;
    let kinds = pair.edge_kinds.len();
    let mut edge_kinds: Vec<EdgeKind> = read("edge_kinds", pair.edge_kinds)?;
    if edge_kinds.len() < kinds {
        // With a kind that only a later version knows, those that are left would not be all.
        edge_kinds.clear();
    }
    Ok(PairInfo {
        metric: Arc::clone(metric),
        pair: asked,
        function: read("function", pair.function)?,
        edge_kinds,
        points: pair.points,
        refused: Vec::new(),
        facts: PairFacts { exact_since_ns: pair.exact_since_ns, exposed: pair.exposed },
    })
}

/// The parts of an answer to an insertion, or of a description, as far as they have arrived.
#[derive(Debug, Default)]
pub struct Collector {
    head: Option<v1::Enabled>,
    pairs: Vec<v1::Pair>,
    refused: Vec<v1::RefusedFunction>,
}

impl Collector {
    /// Adds a part of the answer to an insertion; other messages are left out.
    pub fn add(&mut self, event: Event) {
        match event {
            Event::Enabled(head) => self.head = Some(head),
            Event::Pairs(chunk) => self.pairs.extend(chunk.pairs),
            Event::Refused(chunk) => self.refused.extend(chunk.functions),
            Event::Progress(_) | Event::Deferred(_) => {}
        }
    }

    /// Adds a part of a description.
    pub fn add_described(&mut self, part: v1::DescribeResponse) {
        match part.event {
            Some(Described::Enabled(head)) => self.add(Event::Enabled(head)),
            Some(Described::Pairs(chunk)) => self.add(Event::Pairs(chunk)),
            Some(Described::Refused(chunk)) => self.add(Event::Refused(chunk)),
            None => {}
        }
    }

    /// Whether the first part has arrived.
    pub fn has_begun(&self) -> bool {
        self.head.is_some()
    }

    /// The number of pairs that have arrived.
    pub fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// The whole answer; `None` if parts of it are missing. Fails if a field has no valid value.
    pub fn finish(self) -> Result<Option<Enabled>, FieldError> {
        let Some(head) = self.head else { return Ok(None) };
        if self.pairs.len() != usize::from_wire(head.pair_count)? {
            return Ok(None);
        }
        let metrics: Vec<Arc<MetricInfo>> = read("metrics", head.metrics)?;
        let metrics = metrics.into_iter().map(|metric| (metric.name.clone(), metric)).collect();
        let pairs = self.pairs.into_iter().enumerate();
        let pairs = pairs.map(|(n, pair)| pair_info(pair, &metrics).map_err(|e| e.inside(format_args!("pairs[{n}]"))));
        let mut pairs: Vec<PairInfo> = pairs.collect::<Result<_, _>>()?;
        let mut refused = Vec::new();
        for function in self.refused {
            let (function, pair) = from_refused(function).map_err(|e| e.inside("refused"))?;
            match pair.map(usize::from_wire).transpose()? {
                Some(pair) => pairs
                    .get_mut(pair)
                    .ok_or_else(|| FieldError::new("refused.pair", "is no pair of the measurement"))?
                    .refused
                    .push(function),
                None => refused.push(function),
            }
        }
        Ok(Some(Enabled {
            id: MeasurementId(head.measurement),
            pid: Pid(head.pid),
            parent: Pid(head.parent),
            title: head.title,
            attached: head.attached,
            threads: head.threads,
            modules: head.modules,
            functions: head.functions,
            points: head.points,
            since_ns: head.since_ns,
            attach_time: read("attach_ns", head.attach_ns)?,
            stopped: HoldTime {
                held: read("stopped_ns", head.stopped_ns)?,
                waited: read("waited_ns", head.waited_ns)?,
            },
            pairs: Arc::new(pairs),
            refused,
            caught_up: head.caught_up,
            not_unwound: head.not_unwound,
            warnings: head.warnings,
        }))
    }
}

#[cfg(test)]
mod tests {
    use ingraft_model::{Focus, Refusal, Svma};
    use prost::Message;

    use super::*;
    use crate::any::{Any, Source, comes_back};

    impl Any for PairInfo {
        fn any(s: &mut Source<'_>) -> Self {
            let metric: Arc<MetricInfo> = s.next();
            PairInfo {
                pair: Arc::new(MetricFocus { metric: metric.name.clone(), focus: s.next() }),
                metric,
                function: s.next(),
                edge_kinds: s.next(),
                points: s.next(),
                refused: s.next(),
                facts: PairFacts { exact_since_ns: s.next(), exposed: s.next() },
            }
        }
    }

    impl Any for Enabled {
        fn any(s: &mut Source<'_>) -> Self {
            let mut pairs: Vec<PairInfo> = s.next();
            // A name stands for one metric.
            for n in 1..pairs.len() {
                if let Some(same) = pairs[..n].iter().find(|pair| pair.metric.name == pairs[n].metric.name) {
                    pairs[n].metric = Arc::clone(&same.metric);
                }
            }
            Enabled {
                id: s.next(),
                pid: s.next(),
                parent: s.next(),
                title: s.next(),
                attached: s.next(),
                threads: s.next(),
                modules: s.next(),
                functions: s.next(),
                points: s.next(),
                since_ns: s.next(),
                attach_time: s.next(),
                stopped: s.next(),
                pairs: Arc::new(pairs),
                refused: s.next(),
                caught_up: s.next(),
                not_unwound: s.next(),
                warnings: s.next(),
            }
        }
    }

    #[test]
    fn edges_of_a_kind_that_only_a_later_version_knows_have_none() {
        let pair: PairInfo = Source::zeros().next();
        let metrics = BTreeMap::from([(pair.metric.name.clone(), Arc::clone(&pair.metric))]);
        let sent = |edge_kinds: Vec<i32>| v1::Pair {
            pair: Some(v1::MetricFocus { metric: pair.metric.name.clone(), focus: String::new() }),
            edge_kinds,
            ..v1::Pair::default()
        };
        assert_eq!(pair_info(sent(vec![1]), &metrics).unwrap().edge_kinds.len(), 1);
        assert_eq!(pair_info(sent(vec![1, 77]), &metrics).unwrap().edge_kinds, []);
    }

    #[test]
    fn answers_and_descriptions_come_back() {
        comes_back(|whole: Enabled| {
            let mut described = Collector::default();
            description(whole.id, whole.pid, Arc::clone(&whole.pairs)).for_each(|part| described.add_described(part));
            let described = described.finish().expect("a description").expect("all parts");
            assert_eq!(described.pairs, whole.pairs);
            let mut collector = Collector::default();
            enabled(whole).filter_map(|part| part.event).for_each(|event| collector.add(event));
            collector.finish().map_err(|e| e.to_string())?.ok_or_else(|| "not whole".to_owned())
        });
    }

    fn refused(n: u64) -> RefusedFunction {
        let function = ingraft_api::NamedFunction { module: "m".into(), function: format!("f{n}"), offset: Svma(n) };
        RefusedFunction { function, reason: Refusal::StraddlesPages.into() }
    }

    fn answer(pairs: u64) -> Enabled {
        let mut whole: Enabled = Source::zeros().next();
        let metric = Arc::new(MetricInfo { name: "calls".into(), ..Source::zeros().next() });
        let pair = |n: u64| {
            let focus = Focus::parse(&format!("/Code/a-module/{}{n}", "x".repeat(200))).unwrap();
            let pair = Arc::new(MetricFocus { metric: "calls".into(), focus });
            let refused = if n == 3 { vec![refused(8), refused(9)] } else { Vec::new() };
            PairInfo { points: 1, refused, ..PairInfo::new(pair, Arc::clone(&metric)) }
        };
        whole.pairs = Arc::new((0..pairs).map(pair).collect());
        whole.refused = vec![refused(1)];
        whole
    }

    #[test]
    fn many_pairs_come_in_small_messages_and_in_order() {
        let (mut pairs, mut refused, mut head) = (Vec::new(), Vec::new(), None);
        for part in enabled(answer(14_000)) {
            assert!(part.encoded_len() < crate::MESSAGE_BYTES);
            match part.event.unwrap() {
                Event::Progress(_) | Event::Deferred(_) => unreachable!("no progress after the end"),
                Event::Enabled(enabled) => head = Some(enabled),
                Event::Pairs(chunk) => {
                    assert_eq!(chunk.first as usize, pairs.len());
                    pairs.extend(chunk.pairs);
                }
                Event::Refused(chunk) => refused.extend(chunk.functions),
            }
        }
        let head = head.unwrap();
        assert_eq!(head.pair_count as usize, pairs.len());
        assert_eq!(head.metrics.len(), 1, "each metric once");
        assert_eq!(head.refused_count, 3);
        assert_eq!(refused.iter().map(|r| r.pair).collect::<Vec<_>>(), [None, Some(3), Some(3)]);
        assert_eq!(pairs[3].refused_count, 2);
    }

    #[test]
    fn an_answer_with_a_missing_part_is_not_whole() {
        let mut collector = Collector::default();
        enabled(answer(4)).filter_map(|part| part.event).take(1).for_each(|event| collector.add(event));
        assert!(collector.has_begun() && collector.pairs() == 0);
        assert_eq!(collector.finish(), Ok(None));
        assert_eq!(Collector::default().finish(), Ok(None));
    }
}
