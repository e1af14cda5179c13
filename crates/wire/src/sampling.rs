//! Samples of a target. A reading is split into messages, and put together again.

use std::time::Duration;

use ingraft_api::{
    NamedSamples, SampledCall, SampledFunction, SampledMode, SampledSite, SampledState, SampledThread, SamplingMethod,
    SamplingReading, SamplingRequest, StackSamples, ThreadUsage, WaitedKind, WaitedThing,
};
use v1::sample_response::Event;

use crate::MessageParts;
use crate::field::{FieldError, WireField, known, read};
use crate::v1;

enums! {
    SampledState { Running, Waiting }
    SamplingMethod { Perf, Held, Looks }
    SampledMode { Program, SystemCall, Fault, Waiting, Uninterruptible, Stopped }
    WaitedKind { File, Device, Pipe, Socket, Anonymous, Futex }
}

messages! {
    NamedSamples => NamedSamples { name, samples }
    SampledFunction => SampledFunction { function, own, total, kernel, waits }
    SampledThread => SampledThread { tid, name, samples, kernel }
    SampledCall => SampledCall { caller, function, memory, own, kernel, waits }
    StackSamples => StackSamples { function, frames, whole, samples }
    WaitedThing => WaitedThing { kind, name, peer, accepted, address, operation, expected, owner }
    SampledSite => SampledSite { tid, mode, call, object, functions, innermost, samples }
    ThreadUsage => ThreadUsage {
        tid, name, looks, running, missed, minor_faults, major_faults, waits;
        cpu => cpu_ns, system => system_ns, delayed => delayed_ns, block_delay => block_delay_ns
    }
}

/// The request, with the time between two readings.
pub fn request(of: SamplingRequest, interval: Duration) -> v1::SampleRequest {
    let SamplingRequest { target, patterns, threads, state, period, stacks, sites, calls } = of;
    v1::SampleRequest {
        target: target.to_wire(),
        patterns,
        threads: threads.to_wire(),
        state: state.to_wire(),
        period_ns: period.to_wire(),
        interval_ns: interval.to_wire(),
        stacks,
        sites,
        calls,
    }
}

/// Reads a request, and the time between two readings; zero if none is named.
pub fn requested(of: v1::SampleRequest) -> Result<(SamplingRequest, Duration), FieldError> {
    let v1::SampleRequest { target, patterns, threads, state, period_ns, interval_ns, stacks, sites, calls } = of;
    let is_named = state != v1::SampledState::Unspecified as i32;
    let state = if is_named { read("state", state)? } else { SampledState::default() };
    let request = SamplingRequest {
        target: read("target", target)?,
        patterns,
        threads: read("threads", threads)?,
        state,
        period: read("period_ns", period_ns)?,
        stacks,
        sites,
        calls,
    };
    Ok((request, read("interval_ns", interval_ns)?))
}

/// Splits a reading into messages.
pub fn messages(reading: SamplingReading) -> impl Iterator<Item = v1::SampleResponse> + Send {
    let SamplingReading { functions, threads, stacks, sites, calls, usage, ended, .. } = reading;
    let head = v1::SampleHead {
        pid: reading.pid.0,
        time_ns: reading.time_ns,
        span_ns: reading.span.to_wire(),
        cpu_ns: reading.cpu.to_wire(),
        period_ns: reading.period.to_wire(),
        method: reading.method.to_wire(),
        note: reading.note,
        with_kernel: reading.with_kernel,
        looks: reading.looks,
        samples: reading.samples,
        kernel: reading.kernel,
        cut: reading.cut,
        lost: reading.lost,
        throttled: reading.throttled,
        unsampled_threads: reading.unsampled_threads.to_wire(),
        elsewhere: reading.elsewhere.to_wire(),
    };
    let functions = MessageParts::new(functions.into_iter().map(v1::SampledFunction::from))
        .map(|functions| Event::Functions(v1::SampledFunctionChunk { functions }));
    let threads = MessageParts::new(threads.into_iter().map(v1::SampledThread::from))
        .map(|threads| Event::Threads(v1::SampledThreadChunk { threads }));
    let stacks = MessageParts::new(stacks.into_iter().map(v1::StackSamples::from))
        .map(|stacks| Event::Stacks(v1::StackSamplesChunk { stacks }));
    let sites = MessageParts::new(sites.into_iter().map(v1::SampledSite::from))
        .map(|sites| Event::Sites(v1::SampledSiteChunk { sites }));
    let calls = MessageParts::new(calls.into_iter().map(v1::SampledCall::from))
        .map(|calls| Event::Calls(v1::SampledCallChunk { calls }));
    let usage = MessageParts::new(usage.into_iter().map(v1::ThreadUsage::from))
        .map(|threads| Event::Usage(v1::ThreadUsageChunk { threads }));
    let end = Event::End(v1::SampleEnd { ended: ended.map(v1::Ended::from) });
    let events = std::iter::once(Event::Head(head)).chain(functions).chain(threads).chain(stacks);
    let events = events.chain(sites).chain(calls).chain(usage).chain(std::iter::once(end));
    events.map(|event| v1::SampleResponse { event: Some(event) })
}

/// A reading that is being put together.
#[derive(Debug, Default)]
pub struct SamplingCollector(SamplingReading);

impl SamplingCollector {
    /// Adds an event of the answer; returns the reading when it is complete.
    pub fn add(&mut self, event: Event) -> Result<Option<SamplingReading>, FieldError> {
        match event {
            Event::Progress(_) => {}
            Event::Head(head) => self.0 = begun(head)?,
            Event::Functions(chunk) => self.0.functions.extend(known(chunk.functions)?),
            Event::Threads(chunk) => self.0.threads.extend(known(chunk.threads)?),
            Event::Stacks(chunk) => self.0.stacks.extend(known(chunk.stacks)?),
            Event::Sites(chunk) => self.0.sites.extend(known(chunk.sites)?),
            Event::Calls(chunk) => self.0.calls.extend(known(chunk.calls)?),
            Event::Usage(chunk) => self.0.usage.extend(known(chunk.threads)?),
            Event::End(v1::SampleEnd { ended }) => {
                let ended = ended.map(TryInto::try_into).transpose()?;
                return Ok(Some(SamplingReading { ended, ..std::mem::take(&mut self.0) }));
            }
        }
        Ok(None)
    }
}

fn begun(head: v1::SampleHead) -> Result<SamplingReading, FieldError> {
    Ok(SamplingReading {
        pid: read("pid", head.pid)?,
        time_ns: head.time_ns,
        span: read("span_ns", head.span_ns)?,
        cpu: read("cpu_ns", head.cpu_ns)?,
        period: read("period_ns", head.period_ns)?,
        method: read("method", head.method)?,
        note: head.note,
        with_kernel: head.with_kernel,
        looks: head.looks,
        samples: head.samples,
        kernel: head.kernel,
        cut: head.cut,
        lost: head.lost,
        throttled: head.throttled,
        unsampled_threads: read("unsampled_threads", head.unsampled_threads)?,
        elsewhere: read("elsewhere", head.elsewhere)?,
        ..SamplingReading::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::any::{Any, Source, comes_back};

    impl Any for SamplingRequest {
        fn any(s: &mut Source<'_>) -> Self {
            SamplingRequest {
                target: ingraft_api::TargetSpec::Name(s.next()),
                patterns: s.next(),
                threads: s.next(),
                state: s.next(),
                period: s.next(),
                stacks: s.next(),
                sites: s.next(),
                calls: s.next(),
            }
        }
    }

    impl Any for SamplingReading {
        fn any(s: &mut Source<'_>) -> Self {
            SamplingReading {
                pid: s.next(),
                time_ns: s.next(),
                span: s.next(),
                cpu: s.next(),
                period: s.next(),
                method: s.next(),
                note: s.next(),
                with_kernel: s.next(),
                looks: s.next(),
                samples: s.next(),
                kernel: s.next(),
                cut: s.next(),
                lost: s.next(),
                throttled: s.next(),
                unsampled_threads: s.next::<u32>() as usize,
                functions: s.next(),
                threads: s.next(),
                elsewhere: s.next(),
                stacks: s.next(),
                sites: s.next(),
                calls: s.next(),
                usage: s.next(),
                ended: s.next(),
            }
        }
    }

    #[test]
    fn a_request_comes_back() {
        comes_back(|of: SamplingRequest| {
            let (back, interval) = requested(request(of, Duration::from_secs(3))).map_err(|e| e.to_string())?;
            assert_eq!(interval, Duration::from_secs(3));
            Ok(back)
        });
    }

    #[test]
    fn a_reading_comes_back() {
        comes_back(|reading: SamplingReading| {
            let mut collector = SamplingCollector::default();
            let events = messages(reading).filter_map(|message| message.event);
            let read = events.map(|event| collector.add(event)).collect::<Result<Vec<_>, _>>();
            let whole: Vec<_> = read.map_err(|e| e.to_string())?.into_iter().flatten().collect();
            <[SamplingReading; 1]>::try_from(whole).map(|[one]| one).map_err(|all| format!("{} readings", all.len()))
        });
    }
}
