//! Traces as messages: the bytes of a file in parts.

use ingraft_report::{TraceChunk, TraceEnd, TraceRecord, TracedCode, TracedProgram, trace_beginning};

use crate::{PART_BYTES, v1};

/// The beginning of the file: the program and the functions. `None` if there are more functions than a record can have.
pub fn beginning(program: TracedProgram, code: TracedCode) -> Option<Vec<u8>> {
    let records = [TraceRecord::Program(program), TraceRecord::Code(code)];
    records.iter().try_fold(trace_beginning(), |file, record| Some([file, record.to_bytes()?].concat()))
}

/// The records of chunks. A chunk that is too long for a record is left out; the next one of its thread shows that it is missing.
pub fn chunks(chunks: Vec<TraceChunk>) -> Vec<u8> {
    chunks.into_iter().filter_map(|chunk| TraceRecord::Chunk(chunk).to_bytes()).flatten().collect()
}

/// The rest of the file: the last chunks, and the end.
pub fn rest(last: Vec<TraceChunk>, end: TraceEnd) -> Vec<u8> {
    let mut bytes = chunks(last);
    bytes.extend(TraceRecord::End(end).to_bytes().unwrap_or_default());
    bytes
}

/// Splits bytes of a file into parts that each fit into a message.
pub fn parts(bytes: Vec<u8>) -> impl Iterator<Item = v1::TracePart> + Send {
    let mut at = 0;
    std::iter::from_fn(move || {
        let part = bytes.get(at..bytes.len().min(at + PART_BYTES)).filter(|part| !part.is_empty())?;
        at += part.len();
        Some(v1::TracePart { bytes: part.to_vec() })
    })
}

#[cfg(test)]
mod tests {
    use ingraft_report::{TraceError, TraceRecords};

    use super::*;

    #[test]
    fn parts_make_a_file() {
        let chunk = |sequence| TraceChunk { sequence, tokens: vec![7; PART_BYTES], ..TraceChunk::default() };
        let mut file = beginning(TracedProgram::default(), TracedCode::default()).expect("few functions");
        file.extend(chunks(vec![chunk(0), chunk(1)]));
        file.extend(rest(vec![chunk(2)], TraceEnd::default()));
        let all: Vec<v1::TracePart> = parts(file.clone()).collect();
        assert!(all.len() == 4 && all.iter().all(|part| part.bytes.len() <= PART_BYTES));
        let joined: Vec<u8> = all.into_iter().flat_map(|part| part.bytes).collect();
        assert_eq!(joined, file);
        let records: Result<Vec<_>, TraceError> = TraceRecords::new(file.as_slice()).expect("a file").collect();
        assert_eq!(records.expect("whole records").len(), 6);
        assert_eq!(parts(Vec::new()).count(), 0);
    }
}
