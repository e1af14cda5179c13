//! Takes any bytes as messages: decoding and conversions return errors and never panic.
#![no_main]

use ingraft_api::{EnableRequest, LaunchRequest, MetricFocus};
use ingraft_model::MetricInfo;
use ingraft_wire::{Snapshot, sample, v1};
use prost::Message;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&kind, data)) = data.split_first() else { return };
    match kind % 6 {
        0 => {
            if let Ok(metric) = v1::Metric::decode(data) {
                let _ = MetricInfo::try_from(metric);
            }
        }
        1 => {
            // A stream of length-delimited samples updates one snapshot.
            let (mut rest, mut snapshot) = (data, Snapshot::new(16));
            while !rest.is_empty() {
                let Ok(next) = v1::Sample::decode_length_delimited(&mut rest) else { break };
                if snapshot.apply(next).is_err() {
                    break;
                }
            }
            for distribution in snapshot.values.iter().filter_map(|value| value.details().distribution.as_deref()) {
                assert_eq!(distribution.quantile(0.99).is_some(), distribution.count > 0);
                assert!(distribution.count_below(distribution.sum) <= distribution.count);
                assert_eq!(distribution.minus(distribution).count, 0);
            }
        }
        2 => {
            if let Ok(whole) = v1::Sample::decode(data) {
                let parts = sample::split(whole);
                assert!(parts.iter().rev().skip(1).all(|part| part.more));
            }
        }
        3 => {
            if let Ok(text) = std::str::from_utf8(data) {
                let asked = v1::MetricFocus { metric: "calls".to_owned(), focus: text.to_owned() };
                let _ = MetricFocus::try_from(asked);
            }
        }
        4 => {
            let _ = v1::EnableRequest::decode(data).map(EnableRequest::try_from);
            let _ = v1::LaunchRequest::decode(data).map(LaunchRequest::try_from);
        }
        _ => {
            let _ = ingraft_wire::version::check(std::str::from_utf8(data).ok());
        }
    }
});
