//! The journal: everything that is needed to restore a target without its engine, recorded before the first byte of the target changes.
//!
//! The journal is a file in the state directory. A copy of the same bytes is in the target's data area, so that `detach` works without the
//! directory. The format is a head, then records: kind (u8), length (u32), payload, and the CRC-32 of these three.
//!
//! The engine uses plain `write(2)` without sync: after a power loss the target is gone too, and the page cache survives the end of the
//! engine. A crash leaves a torn record at the end; the step that it describes was not done yet.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use ingraft_codegen::{Chain, Linked, RemovalRecord};
use ingraft_model::vector::GRANULES_MAX;
use ingraft_model::{
    Avma, AvmaRange, Capacity, Clock, ContextShape, DataArea, Fold, KeyListing, KeyParts, PcMove, Pid, Places,
    Resolution, Shape, TableShape, TextWrite,
};
use rustc_hash::FxHashMap;

use crate::program::file_id::FileId;
use crate::readings::values::Slots;

const MAGIC: [u8; 8] = *b"INGJRNL\x05";

/// Length in bytes below which a journal is not worth rewriting.
const GROWN: u64 = 16 << 20;

/// Bytes before a record's payload: kind and length.
const FRAME_HEAD: usize = 5;
/// The kind of [`JournalRecord::Point`].
const POINT: u8 = 8;
/// The kind of [`JournalRecord::Chain`].
const CHAIN: u8 = 7;

/// Owner of a snippet that all pairs which follow calls share; it stands where exceptions and longjmp land.
pub const SHARED: u32 = u32::MAX;
/// Owner of a snippet that belongs to no pair; it serves others at its point, or the engine.
pub const NOBODY: u32 = u32::MAX - 1;

/// Identity of the target that a journal is about, and the place of its data area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalHead {
    /// Id of the boot in which the journal was written.
    pub boot_id: [u8; 16],
    /// The target.
    pub pid: Pid,
    /// Start time of the target in clock ticks since boot.
    pub start_time: u64,
    /// Device and inode of the target's executable.
    pub executable: (u64, u64),
    /// Layout of the target's data area.
    pub area: DataArea,
    /// Unix time in nanoseconds of the attachment.
    pub since_ns: u64,
    /// Name of the holder that wrote the journal.
    pub holder: String,
}

/// A pair of a kept measurement: its metric and focus, and the place of its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptPair {
    /// Metric name.
    pub metric: String,
    /// Focus, as text.
    pub focus: String,
    /// Place of the value in a shard.
    pub value: Slots,
    /// Whether the value is in ticks of the clock.
    pub ticks: bool,
    /// First counters of the activations that the pair follows.
    pub activations: Vec<u32>,
    /// First counter of the group whose code the pair shares; `None` if the pair has code of its own.
    pub owner: Option<u32>,
    /// Module, function and offset that the focus names, if it names one function.
    pub function: Option<(String, String, u64)>,
    /// Number of woven points.
    pub points: u32,
}

/// A measurement that is to stay without a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptMeasurement {
    /// Id of the measurement.
    pub id: u64,
    /// MDL sources of the request.
    pub definitions: Vec<(String, String)>,
    /// Pairs of the measurement.
    pub pairs: Vec<KeptPair>,
}

/// A point that is, or was about to be, woven.
#[derive(Clone, Debug, PartialEq)]
pub struct PointRecord {
    /// The file whose text the point changes. If the file is mapped elsewhere or not at all, that text is gone, and another mapping may
    /// have its addresses.
    pub file: FileId,
    /// Record that removes the point.
    pub removal: RemovalRecord,
}

/// The snippets at a point, with their owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointChain {
    /// Key of the point ([`RemovalRecord::key`]).
    pub key: Avma,
    /// The snippets. The name of each is the first counter of its pair, or [`SHARED`] or [`NOBODY`].
    pub chain: Chain,
}

/// One step in the life of a target's instrumentation.
#[derive(Clone, Debug, PartialEq)]
pub enum JournalRecord {
    /// An arena was mapped.
    Arena(AvmaRange),
    /// A point is about to be woven; the record removes it.
    Point(PointRecord),
    /// The point whose code begins at this address is gone.
    PointGone(Avma),
    /// A measurement is to stay without a client.
    Kept(KeptMeasurement),
    /// The measurement with this id is gone.
    KeptGone(u64),
    /// Code may have counted into counters below this index.
    Counters(u32),
    /// These snippets are at a point, or are about to be.
    Chain(PointChain),
}

/// Encoded records.
#[derive(Debug, Default)]
pub struct Entries {
    bytes: Vec<u8>,
    /// Whether earlier records may be superfluous because of these.
    replaces: bool,
}

impl Entries {
    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds a record.
    pub fn add(&mut self, record: &JournalRecord) {
        self.replaces = true;
        self.add_first(record);
    }

    /// Adds a record that makes no earlier one superfluous.
    pub fn add_first(&mut self, record: &JournalRecord) {
        encode_record(record, &mut self.bytes);
    }

    /// Adds a point that is about to be woven, with all records that remove it together; its own record comes first.
    pub fn add_point<'r>(&mut self, file: FileId, records: impl Iterator<Item = &'r RemovalRecord> + Clone) {
        let start = begin_frame(&mut self.bytes);
        encode_point(file, records, &mut self.bytes);
        end_frame(POINT, start, &mut self.bytes);
    }
}

impl FromIterator<JournalRecord> for Entries {
    fn from_iter<I: IntoIterator<Item = JournalRecord>>(records: I) -> Self {
        let mut entries = Entries::default();
        records.into_iter().for_each(|record| entries.add(&record));
        entries
    }
}

impl From<JournalRecord> for Entries {
    fn from(record: JournalRecord) -> Self {
        Entries::from_iter([record])
    }
}

/// Contents of a journal: the state after its last whole record.
#[derive(Clone, Debug, PartialEq)]
pub struct Contents {
    /// Head of the journal.
    pub head: JournalHead,
    /// Arenas that are mapped.
    pub arenas: Vec<AvmaRange>,
    /// Points that are woven, or were about to be.
    pub points: Vec<PointRecord>,
    /// Measurements that are to stay without a client.
    pub kept: Vec<KeptMeasurement>,
    /// Code may have counted into counters below this index.
    pub counters: u32,
    /// The snippets at points, by the points' keys.
    pub chains: BTreeMap<Avma, PointChain>,
}

/// A journal that an engine writes.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    len: u64,
    /// Length up to which no record was superfluous when it was written.
    whole: u64,
    /// Whether records after that length may make others superfluous.
    is_replaced: bool,
}

impl Journal {
    /// Creates a journal, and overwrites one of the same name. Returns the bytes for the copy.
    pub fn create(path: PathBuf, head: &JournalHead) -> io::Result<(Journal, Vec<u8>)> {
        let mut file = File::create(&path)?;
        let bytes = encode_head(head);
        file.write_all(&bytes)?;
        let len = bytes.len() as u64;
        Ok((Journal { file, path, len, whole: len, is_replaced: false }, bytes))
    }

    /// Replaces a journal that has grown, or that a dead engine left, by one with the content `bytes` (see [`encode`]). The new file is
    /// written aside and renamed, so that a whole journal exists at any instant.
    pub fn replace(path: PathBuf, bytes: &[u8]) -> io::Result<Journal> {
        let folder = path.parent().unwrap_or(std::path::Path::new("."));
        let mut aside = tempfile::NamedTempFile::new_in(folder)?;
        aside.write_all(bytes)?;
        let file = aside.persist(&path).map_err(|e| e.error)?;
        let len = bytes.len() as u64;
        Ok(Journal { file, path, len, whole: len, is_replaced: false })
    }

    /// Appends records with one write. Returns their bytes, for the copy.
    pub fn append(&mut self, entries: Entries) -> io::Result<Vec<u8>> {
        self.file.write_all(&entries.bytes)?;
        self.len += entries.bytes.len() as u64;
        self.is_replaced |= entries.replaces;
        if !self.is_replaced {
            self.whole = self.len;
        }
        Ok(entries.bytes)
    }

    /// Rewrites the journal without the records of things that are gone. Returns the whole content, for the copy.
    pub fn compact(&mut self) -> io::Result<Vec<u8>> {
        let contents = decode(&std::fs::read(&self.path)?).ok_or(io::ErrorKind::InvalidData)?;
        let bytes = encode(&contents);
        *self = Journal::replace(self.path.clone(), &bytes)?;
        Ok(bytes)
    }

    /// Whether so much was appended that records of things that are gone may take most of the journal.
    pub fn has_grown(&self) -> bool {
        self.len > GROWN.max(2 * self.whole)
    }

    /// Length of the journal in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Removes the journal once the target is restored.
    pub fn discard(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

/// Reads a journal. `None` if there is no valid head.
pub fn decode(bytes: &[u8]) -> Option<Contents> {
    let mut r = JournalReader { bytes };
    let head = decode_head(&mut r)?;
    let mut contents = Contents {
        head,
        arenas: Vec::new(),
        points: Vec::new(),
        kept: Vec::new(),
        counters: 0,
        chains: BTreeMap::new(),
    };
    // A copy may come from a hostile target, so the time must not grow with the product of points and removals.
    let mut points: Vec<Option<PointRecord>> = Vec::new();
    let mut kept: BTreeMap<u64, KeptMeasurement> = BTreeMap::new();
    let mut by_key: FxHashMap<Avma, Vec<usize>> = FxHashMap::default();
    while let Some(record) = decode_record(&mut r) {
        match record {
            JournalRecord::Arena(range) => contents.arenas.push(range),
            JournalRecord::Point(point) => {
                by_key.entry(point.removal.key()).or_default().push(points.len());
                points.push(Some(point));
            }
            JournalRecord::PointGone(at) => {
                let gone = by_key.remove(&at).unwrap_or_default();
                gone.into_iter().for_each(|i| points[i] = None);
                contents.chains.remove(&at);
            }
            JournalRecord::Chain(chain) => drop(contents.chains.insert(chain.key, chain)),
            JournalRecord::Kept(one) => _ = kept.insert(one.id, one),
            JournalRecord::KeptGone(id) => _ = kept.remove(&id),
            JournalRecord::Counters(used) => contents.counters = contents.counters.max(used),
        }
    }
    contents.points = points.into_iter().flatten().collect();
    contents.kept = kept.into_values().collect();
    Some(contents)
}

/// Encodes contents as the shortest journal with the same state.
pub fn encode(contents: &Contents) -> Vec<u8> {
    let mut out = encode_head(&contents.head);
    encode_record(&JournalRecord::Counters(contents.counters), &mut out);
    for arena in &contents.arenas {
        encode_record(&JournalRecord::Arena(arena.clone()), &mut out);
    }
    for point in &contents.points {
        encode_record(&JournalRecord::Point(point.clone()), &mut out);
    }
    for kept in &contents.kept {
        encode_record(&JournalRecord::Kept(kept.clone()), &mut out);
    }
    for chain in contents.chains.values() {
        encode_record(&JournalRecord::Chain(chain.clone()), &mut out);
    }
    out
}

fn encode_head(head: &JournalHead) -> Vec<u8> {
    let mut p = Vec::new();
    p.extend_from_slice(&head.boot_id);
    p.extend_from_slice(&head.pid.0.to_le_bytes());
    for v in [
        head.start_time,
        head.executable.0,
        head.executable.1,
        head.area.base.0,
        head.area.stride,
        u64::from(head.area.shards),
        head.area.journal_bytes,
        head.since_ns,
    ] {
        put(&mut p, v);
    }
    put_text(&mut p, &head.holder);
    let mut out = MAGIC.to_vec();
    let start = begin_frame(&mut out);
    out.append(&mut p);
    end_frame(0, start, &mut out);
    out
}

fn decode_head(r: &mut JournalReader<'_>) -> Option<JournalHead> {
    r.bytes = r.bytes.strip_prefix(&MAGIC)?;
    let (0, payload) = r.frame()? else { return None };
    let mut p = JournalReader { bytes: payload };
    let boot_id = p.take(16)?.try_into().ok()?;
    let pid = Pid(i32::from_le_bytes(p.take(4)?.try_into().ok()?));
    let start_time = p.u64()?;
    let executable = (p.u64()?, p.u64()?);
    let area = DataArea {
        base: Avma(p.u64()?),
        stride: p.u64()?,
        shards: u32::try_from(p.u64()?).ok()?,
        journal_bytes: p.u64()?,
    };
    Some(JournalHead { boot_id, pid, start_time, executable, area, since_ns: p.u64()?, holder: p.text()? })
}

/// Encodes the records of a point as one; text and code are those of the first record.
fn encode_point<'r>(file: FileId, mut records: impl Iterator<Item = &'r RemovalRecord> + Clone, p: &mut Vec<u8>) {
    let all = records.clone();
    let Some(own) = records.next() else { return };
    put(p, u64::from(file.device.0) << 32 | u64::from(file.device.1));
    put(p, file.inode);
    put(p, own.text.len() as u64);
    for w in &own.text {
        put(p, w.at.0);
        p.push(w.len);
        p.extend_from_slice(&w.old);
        p.extend_from_slice(&w.new);
    }
    put(p, all.clone().map(|record| record.moves.len() as u64).sum());
    let mut last = PcMove { from: Avma(0), to: Avma(0) };
    for m in all.clone().flat_map(|record| &record.moves) {
        put_distance(p, last.from, m.from);
        put_distance(p, last.to, m.to);
        last = *m;
    }
    put(p, all.clone().map(|record| record.step_out.len() as u64).sum());
    for range in all.flat_map(|record| &record.step_out) {
        put_range(p, range);
    }
    put_range(p, &own.code);
}

fn encode_record(record: &JournalRecord, p: &mut Vec<u8>) {
    let start = begin_frame(p);
    let kind = match record {
        JournalRecord::Arena(range) => {
            put_range(p, range);
            1
        }
        JournalRecord::Point(PointRecord { file, removal }) => {
            encode_point(*file, std::iter::once(removal), p);
            POINT
        }
        JournalRecord::PointGone(at) => {
            put(p, at.0);
            3
        }
        JournalRecord::Kept(KeptMeasurement { id, definitions, pairs }) => {
            put(p, *id);
            put(p, definitions.len() as u64);
            for (name, text) in definitions {
                put_text(p, name);
                put_text(p, text);
            }
            put(p, pairs.len() as u64);
            for pair in pairs {
                put_text(p, &pair.metric);
                put_text(p, &pair.focus);
                put(p, u64::from(pair.value.first));
                put_shape(p, pair.value.shape);
                p.push(u8::from(pair.ticks));
                put(p, pair.activations.len() as u64);
                pair.activations.iter().for_each(|first| put(p, u64::from(*first)));
                put(p, u64::from(pair.points));
                p.push(u8::from(pair.function.is_some()));
                if let Some((module, name, offset)) = &pair.function {
                    put_text(p, module);
                    put_text(p, name);
                    put(p, *offset);
                }
                p.push(u8::from(pair.owner.is_some()));
                if let Some(owner) = pair.owner {
                    put(p, u64::from(owner));
                }
            }
            4
        }
        JournalRecord::KeptGone(id) => {
            put(p, *id);
            5
        }
        JournalRecord::Counters(used) => {
            put(p, u64::from(*used));
            6
        }
        JournalRecord::Chain(PointChain { key, chain }) => {
            for at in [*key, chain.function, chain.slot, chain.leave] {
                put(p, at.0);
            }
            put(p, chain.snippets.len() as u64);
            for (owner, code) in &chain.snippets {
                p.extend_from_slice(&(*owner as u32).to_le_bytes());
                p.push(u8::from(code.is_some()));
                if let Some(code) = code {
                    put(p, code.start.0);
                    put(p, code.link.0);
                }
            }
            CHAIN
        }
    };
    end_frame(kind, start, p);
}

/// Encodes a shape as a number; for a vector, the number of its values follows, for a table, its parts and the number of its places.
fn put_shape(out: &mut Vec<u8>, shape: Shape) {
    out.push(match shape {
        Shape::Counter => 0,
        Shape::Timer(Clock::Wall) => 1,
        Shape::Histogram(Resolution::Fine) => 2,
        Shape::Histogram(Resolution::Medium) => 9,
        Shape::Histogram(Resolution::Coarse) => 10,
        Shape::Activations => 3,
        Shape::Timer(Clock::Cpu) => 4,
        Shape::Table(TableShape { fold: Fold::Sum, .. }) => 5,
        Shape::Table(TableShape { fold: Fold::Last, .. }) => 6,
        Shape::Vector(_) => 7,
        Shape::Event => 8,
        Shape::Listed(_) => 11,
        Shape::Buffer(_) => 12,
        Shape::Records(..) => 14,
        Shape::Alias(_) => 13,
        Shape::Contexts(_) => 15,
        Shape::Outermost => 16,
    });
    if let Shape::Alias(counter) = shape {
        put(out, u64::from(counter));
    }
    if let Shape::Buffer(capacity) | Shape::Records(capacity, _) = shape {
        put(out, u64::from(capacity.bytes()));
    }
    if let Shape::Vector(count) = shape {
        put(out, u64::from(count));
    }
    if let Shape::Table(TableShape { parts, places, fold: _ }) = shape {
        put(out, u64::from(parts.bits()));
        put(out, u64::from(places.count()));
    }
    if let Shape::Contexts(contexts) = shape {
        out.extend([contexts.bits(), u8::from(contexts.metrics()), u8::from(contexts.full())]);
    }
    if let Shape::Listed(listing) = shape {
        put(out, u64::from(listing.places()));
    }
}

fn decode_record(r: &mut JournalReader<'_>) -> Option<JournalRecord> {
    let (kind, payload) = r.frame()?;
    let mut p = JournalReader { bytes: payload };
    match kind {
        1 => Some(JournalRecord::Arena(p.range()?)),
        POINT => {
            let device = p.u64()?;
            let file = FileId { device: ((device >> 32) as u32, device as u32), inode: p.u64()? };
            let text = p.list(|p| {
                let at = Avma(p.u64()?);
                let len = p.take(1)?[0];
                if !(1..=8).contains(&len) {
                    return None;
                }
                Some(TextWrite { at, len, old: p.take(8)?.try_into().ok()?, new: p.take(8)?.try_into().ok()? })
            })?;
            let mut last = PcMove { from: Avma(0), to: Avma(0) };
            let moves = p.list(|p| {
                last = PcMove { from: p.distance(last.from)?, to: p.distance(last.to)? };
                Some(last)
            })?;
            let step_out = p.list(JournalReader::range)?;
            let removal = RemovalRecord { text, moves, step_out, code: p.range()? };
            Some(JournalRecord::Point(PointRecord { file, removal }))
        }
        3 => Some(JournalRecord::PointGone(Avma(p.u64()?))),
        4 => {
            let id = p.u64()?;
            let definitions = p.list(|p| Some((p.text()?, p.text()?)))?;
            let pairs = p.list(|p| {
                let (metric, focus) = (p.text()?, p.text()?);
                let first = u32::try_from(p.u64()?).ok()?;
                let shape = p.shape()?;
                let ticks = p.take(1)?[0] == 1;
                let activations = p.list(|p| u32::try_from(p.u64()?).ok())?;
                let value = Slots { first, shape };
                let points = u32::try_from(p.u64()?).ok()?;
                let function = if p.take(1)?[0] == 1 { Some((p.text()?, p.text()?, p.u64()?)) } else { None };
                let owner = if p.take(1)?[0] == 1 { Some(u32::try_from(p.u64()?).ok()?) } else { None };
                Some(KeptPair { metric, focus, value, ticks, activations, owner, function, points })
            })?;
            Some(JournalRecord::Kept(KeptMeasurement { id, definitions, pairs }))
        }
        5 => Some(JournalRecord::KeptGone(p.u64()?)),
        6 => Some(JournalRecord::Counters(u32::try_from(p.u64()?).ok()?)),
        CHAIN => {
            let [key, function, slot, leave] = [p.u64()?, p.u64()?, p.u64()?, p.u64()?].map(Avma);
            let snippets = p.list(|p| {
                let owner = u32::from_le_bytes(p.take(4)?.try_into().ok()?);
                let code = match p.take(1)?[0] {
                    0 => None,
                    _ => Some(Linked { start: Avma(p.u64()?), link: Avma(p.u64()?) }),
                };
                Some((u64::from(owner), code))
            })?;
            Some(JournalRecord::Chain(PointChain { key, chain: Chain { function, slot, leave, snippets } }))
        }
        _ => None,
    }
}

impl JournalReader<'_> {
    fn table(&mut self, fold: Fold) -> Option<TableShape> {
        let parts = KeyParts::of_bits(u16::try_from(self.u64()?).ok()?)?;
        let places = Places::of(u32::try_from(self.u64()?).ok()?)?;
        Some(TableShape { fold, parts, places })
    }

    fn shape(&mut self) -> Option<Shape> {
        Some(match self.take(1)?[0] {
            0 => Shape::Counter,
            1 => Shape::Timer(Clock::Wall),
            2 => Shape::Histogram(Resolution::Fine),
            3 => Shape::Activations,
            4 => Shape::Timer(Clock::Cpu),
            5 => Shape::Table(self.table(Fold::Sum)?),
            6 => Shape::Table(self.table(Fold::Last)?),
            7 => Shape::Vector(u32::try_from(self.u64()?).ok().filter(|n| (1..=GRANULES_MAX).contains(n))?),
            8 => Shape::Event,
            9 => Shape::Histogram(Resolution::Medium),
            10 => Shape::Histogram(Resolution::Coarse),
            14 => Shape::Records(Capacity::of_bytes(u32::try_from(self.u64()?).ok()?)?, false),
            12 => Shape::Buffer(Capacity::of_bytes(u32::try_from(self.u64()?).ok()?)?),
            15 => {
                let [bits, metrics, full] = *self.take(3)? else { return None };
                Shape::Contexts(ContextShape::of_bits(bits, metrics != 0, full != 0)?)
            }
            16 => Shape::Outermost,
            13 => Shape::Alias(u32::try_from(self.u64()?).ok()?),
            11 => Shape::Listed(KeyListing::of_places(u32::try_from(self.u64()?).ok()?)?),
            _ => return None,
        })
    }
}

fn put(out: &mut Vec<u8>, v: u64) {
    out.extend_from_slice(&v.to_le_bytes());
}

/// Encodes the distance between two addresses: seven bits a byte, the lowest first, with the sign in the lowest bit.
fn put_distance(out: &mut Vec<u8>, from: Avma, to: Avma) {
    let distance = to.0.wrapping_sub(from.0).cast_signed();
    let mut left = (distance << 1 ^ distance >> 63).cast_unsigned();
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn put_range(out: &mut Vec<u8>, range: &AvmaRange) {
    put(out, range.start.0);
    put(out, range.end.0);
}

/// Leaves room for kind and length. Returns the position at which the frame begins.
fn begin_frame(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_HEAD]);
    start
}

fn end_frame(kind: u8, start: usize, out: &mut Vec<u8>) {
    let len = (out.len() - start - FRAME_HEAD) as u32;
    if let Some([first, rest @ ..]) = out.get_mut(start..start + FRAME_HEAD) {
        *first = kind;
        rest.copy_from_slice(&len.to_le_bytes());
    }
    let sum = crc32fast::hash(&out[start..]);
    out.extend_from_slice(&sum.to_le_bytes());
}

struct JournalReader<'a> {
    bytes: &'a [u8],
}

impl<'a> JournalReader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.bytes.split_at_checked(n)?;
        self.bytes = rest;
        Some(head)
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    /// The address at an encoded distance from another one.
    fn distance(&mut self, from: Avma) -> Option<Avma> {
        let mut all = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            all |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                let distance = (all >> 1) ^ (all & 1).wrapping_neg();
                return Some(Avma(from.0.wrapping_add(distance)));
            }
        }
        None
    }

    fn text(&mut self) -> Option<String> {
        let n = usize::try_from(self.u64()?).ok()?;
        String::from_utf8(self.take(n)?.to_vec()).ok()
    }

    fn range(&mut self) -> Option<AvmaRange> {
        Some(Avma(self.u64()?)..Avma(self.u64()?))
    }

    fn list<T>(&mut self, mut one: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let n = self.u64()?;
        // Every element takes at least one byte, so a hostile count ends early instead of allocating.
        let mut out = Vec::new();
        for _ in 0..n {
            out.push(one(self)?);
        }
        Some(out)
    }

    /// The kind and payload of the next record, if the record is whole.
    fn frame(&mut self) -> Option<(u8, &'a [u8])> {
        let whole = self.bytes;
        let kind = self.take(1)?[0];
        let n = u32::from_le_bytes(self.take(4)?.try_into().ok()?) as usize;
        let payload = self.take(n)?;
        let sum = u32::from_le_bytes(self.take(4)?.try_into().ok()?);
        (crc32fast::hash(&whole[..5 + n]) == sum).then_some((kind, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_come_back() {
        let far = [0, 1, 63, 64, 0x7f00_0000_1234, u64::MAX, 1 << 63];
        for (from, to) in far.into_iter().flat_map(|from| far.map(|to| (Avma(from), Avma(to)))) {
            let mut bytes = Vec::new();
            put_distance(&mut bytes, from, to);
            let mut reader = JournalReader { bytes: &bytes };
            assert_eq!((reader.distance(from), reader.bytes.len()), (Some(to), 0), "{from} {to}");
        }
        assert_eq!(JournalReader { bytes: &[0x80; 11] }.distance(Avma(0)), None);
    }

    #[test]
    fn a_journal_without_superfluous_records_is_not_rewritten() {
        let directory = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::create(directory.path().join("journal"), &head()).unwrap();
        let many = |record: &JournalRecord, add: fn(&mut Entries, &JournalRecord)| {
            let mut entries = Entries::default();
            while entries.bytes.len() as u64 <= GROWN {
                add(&mut entries, record);
            }
            entries
        };
        let arena = JournalRecord::Arena(Avma(0x1000)..Avma(0x2000));
        for _ in 0..3 {
            journal.append(many(&arena, Entries::add_first)).unwrap();
            assert!(!journal.has_grown());
        }
        // Most of these records belong to nothing that is left.
        for _ in 0..3 {
            assert!(!journal.has_grown());
            journal.append(many(&JournalRecord::PointGone(Avma(0x1000)), Entries::add)).unwrap();
        }
        journal.append(many(&JournalRecord::PointGone(Avma(0x1000)), Entries::add)).unwrap();
        assert!(journal.has_grown());
        journal.compact().unwrap();
        assert!(!journal.has_grown());
    }

    fn head() -> JournalHead {
        JournalHead {
            boot_id: [7; 16],
            pid: Pid(42),
            start_time: 99,
            executable: (1, 2),
            area: DataArea { base: Avma(0x7000_0000), stride: 1 << 20, shards: 64, journal_bytes: 1 << 20 },
            since_ns: 5,
            holder: "ingraft 1".into(),
        }
    }

    fn point(at: u64) -> PointRecord {
        let removal = RemovalRecord {
            text: vec![TextWrite {
                at: Avma(at),
                len: 5,
                old: [1, 2, 3, 4, 5, 0, 0, 0],
                new: [0xe9, 0, 0, 0, 0, 0, 0, 0],
            }],
            moves: vec![PcMove { from: Avma(at + 0x1000), to: Avma(at) }],
            step_out: vec![Avma(1)..Avma(2)],
            code: Avma(at + 0x1000)..Avma(at + 0x1040),
        };
        PointRecord { file: FileId { device: (254, 1), inode: at }, removal }
    }

    fn chain(at: u64) -> PointChain {
        let code = Linked { start: Avma(at + 0x1010), link: Avma(at + 0x1020) };
        let snippets = vec![(3, Some(code)), (SHARED.into(), None)];
        let chain = Chain { function: Avma(at), slot: Avma(at + 0x1004), leave: Avma(at + 0x1030), snippets };
        PointChain { key: point(at).removal.key(), chain }
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("j");
        let (mut journal, mut copy) = Journal::create(path.clone(), &head()).expect("create");
        let kept = KeptPair {
            metric: "calls".into(),
            focus: "/Code/m/f".into(),
            value: Slots { first: 3, shape: Shape::Histogram(Resolution::Fine) },
            ticks: true,
            activations: vec![9, 12],
            owner: None,
            function: Some(("m".into(), "f".into(), 1)),
            points: 1,
        };
        let vector = KeptPair { value: Slots { first: 4, shape: Shape::Vector(700) }, ..kept.clone() };
        let shared = KeptPair { value: Slots { first: 720, shape: Shape::Counter }, owner: Some(704), ..kept.clone() };
        for records in [
            vec![
                JournalRecord::Arena(Avma(0x1000)..Avma(0x2000)),
                JournalRecord::Point(point(0x400000)),
                JournalRecord::Point(point(0x400100)),
                JournalRecord::Point(point(0x400200)),
                JournalRecord::Chain(chain(0x400100)),
                JournalRecord::Chain(chain(0x400200)),
            ],
            vec![
                JournalRecord::PointGone(point(0x400000).removal.key()),
                JournalRecord::PointGone(point(0x400200).removal.key()),
                JournalRecord::Kept(KeptMeasurement { id: 1, definitions: vec![], pairs: vec![kept, vector, shared] }),
            ],
        ] {
            copy.extend(journal.append(records.into_iter().collect()).expect("append"));
            assert_eq!(journal.len(), copy.len() as u64);
        }
        let bytes = std::fs::read(&path).expect("read");
        assert_eq!(bytes, copy);
        let contents = decode(&bytes).expect("a journal");
        assert_eq!(contents.head, head());
        assert_eq!(contents.points, [point(0x400100)]);
        assert_eq!(contents.kept.len(), 1);
        assert_eq!(contents.chains.into_values().collect::<Vec<_>>(), [chain(0x400100)]);
        let contents = decode(&bytes).expect("a journal");
        assert_eq!(decode(&encode(&contents)), Some(contents));
        journal.discard().expect("removed");
        assert!(!path.exists());
    }

    #[test]
    fn a_torn_journal_gives_what_is_whole() {
        let mut bytes = encode_head(&head());
        let whole = bytes.len();
        encode_record(&JournalRecord::Point(point(0x400000)), &mut bytes);
        for cut in 0..bytes.len() {
            let contents = decode(&bytes[..cut]);
            assert_eq!(contents.is_some(), cut >= whole, "cut at {cut}");
            assert!(contents.is_none_or(|c| c.points.is_empty()));
        }
        for flip in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[flip] ^= 0x40;
            let _ = decode(&bad);
        }
    }
}
