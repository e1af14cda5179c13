//! Takes any bytes as the records of a trace: they are refused, or replayed without a panic.
#![no_main]

use ingraft_report::{TraceRecord, TraceRecords, TraceReplay, TracedFunction, TracedRoutine, functions_of, trace_beginning};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = TraceRecords::new(data).map(|records| records.count());
    // Correct headers, so that the contents themselves are read: a byte for the kind, and one for the length.
    let (mut file, mut rest) = (trace_beginning(), data);
    while let [kind, length, content @ ..] = rest {
        let (content, after) = content.split_at(content.len().min(4 * usize::from(*length)));
        let kind = u32::from(kind % 6);
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&kind.to_le_bytes());
        hasher.update(content);
        file.extend((content.len() as u32).to_le_bytes());
        file.extend(hasher.finalize().to_le_bytes());
        file.extend(kind.to_le_bytes());
        file.extend(content);
        rest = after;
    }
    let Ok(records) = TraceRecords::new(file.as_slice()) else { return };
    let records: Vec<TraceRecord> = records.map_while(Result::ok).collect();
    for record in &records {
        assert!(record.to_bytes().is_some());
    }
    let traced: Result<Vec<TracedFunction>, _> = functions_of(&records).into_iter().map(TracedRoutine::traced).collect();
    let Ok(traced) = traced else { return };
    let mut replay = TraceReplay::new(&traced);
    for record in &records {
        if let TraceRecord::Chunk(chunk) = record {
            let _ = replay.chunk(chunk, &mut |_, _| ());
        }
    }
    let _ = replay.unknown().count();
});
