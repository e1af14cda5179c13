//! Code shared by the fuzz targets: small ELF images around arbitrary bytes, and functions that ask an image all questions.

#![forbid(unsafe_code)]

use std::sync::Arc;

use ingraft_analysis::AnalysedImage;
use ingraft_codegen::verify::verify_weave;
use ingraft_codegen::{Arena, Environment, MiniRequest, PointRequest, Readable, TextSpace, Weave, weave_points};
use ingraft_model::{
    Avma, Bias, BinaryOp, CallRecord, Called, Clock, CpuClock, DataArea, Expr, Float, FloatFormat, IntegerWidth,
    KeptValue, KeyField, ObjectKind, ObjectState, PointKind, ProgramCall, Ranges, Resolution, Restore, Scalar, Scale,
    Shape, Site, Snippet, Stmt, TableShape, ThreadIdentity, TimeUnit, Usage, VariableId, VectorState, WallClock,
};

/// Address of the text in images that [`image`] makes.
pub const TEXT: u64 = 0x1000;

/// Asks an image all questions, and returns the sites in it. Nothing may panic, and the answers must be consistent with each other.
pub fn survey(image: &AnalysedImage) -> Vec<Arc<Site>> {
    let _ = (image.build_id(), image.debuglink(), image.soname(), image.interpreter(), image.entry(), image.uses_gs());
    let mut sites = Vec::new();
    for function in image.functions() {
        assert!(function.contains(function.start()));
        let _ = function.display_name();
        assert!(function.spellings().count() < 100_000);
        assert_eq!(image.function_at(function.start()).map(|found| found.start()), Some(function.start()));
        if let Ok(site) = image.entry_site(function) {
            assert!(usize::from(site.own) <= site.bytes.len());
            assert_eq!(image.bytes_at(site.at, site.bytes.len()), Some(site.bytes.as_slice()));
            sites.push(site);
        }
        for exit in image.exit_sites(function).into_iter().flatten().flatten() {
            assert!(exit.point < exit.own && usize::from(exit.own) <= exit.bytes.len());
            assert_eq!(image.bytes_at(exit.at, exit.bytes.len()), Some(exit.bytes.as_slice()));
            sites.push(exit);
        }
        for call in image.call_sites(function).into_iter().flatten() {
            assert!(call.len > 0);
        }
        for after in [false, true] {
            for site in image.call_points(function, after).into_iter().flatten().filter_map(|p| p.site.ok()?) {
                assert!(usize::from(site.point) <= usize::from(site.own) && usize::from(site.own) <= site.bytes.len());
                assert_eq!(image.bytes_at(site.at, site.bytes.len()), Some(site.bytes.as_slice()));
                sites.push(Arc::new(site));
            }
        }
    }
    for padding in image.padding() {
        assert_eq!(padding.range.end.0 - padding.range.start.0, padding.bytes.len() as u64);
    }
    sites
}

/// Returns the bytes that a write of a plan overwrites: those of the file, or code of the plan itself, which may contain an exit that its
/// entry displaces.
pub fn bytes_before<'a>(image: &'a AnalysedImage, weave: &'a Weave, at: Avma, len: usize) -> Option<&'a [u8]> {
    let of_plan = || {
        weave.plan.code.iter().find_map(|code| {
            let offset = usize::try_from(at.0.checked_sub(code.at.0)?).ok()?;
            code.bytes.get(offset..offset.checked_add(len)?)
        })
    };
    image.bytes_at(ingraft_model::Svma(at.0), len).or_else(of_plan)
}

/// Returns a shared object with these sections: text at [`TEXT`] with a global function at each of these offsets, and call frame
/// information.
pub fn image(text: &[u8], functions: &[u16], frames: &[u8]) -> Vec<u8> {
    let mut file = vec![0; TEXT as usize];
    file.extend_from_slice(text);
    let align = |file: &mut Vec<u8>| file.resize(file.len().next_multiple_of(16), 0);
    align(&mut file);
    let frames_at = file.len();
    file.extend_from_slice(frames);
    align(&mut file);
    let mut names = vec![0];
    let mut symbols = vec![0; 24];
    for (index, &offset) in functions.iter().enumerate() {
        let name = names.len() as u32;
        names.extend_from_slice(format!("f{index}\0").as_bytes());
        symbols.extend_from_slice(&name.to_le_bytes());
        symbols.extend_from_slice(&[0x12, 0, 1, 0]); // a global function in section 1
        symbols.extend_from_slice(&(TEXT + u64::from(offset)).to_le_bytes());
        symbols.extend_from_slice(&0_u64.to_le_bytes());
    }
    let symbols_at = file.len();
    file.extend_from_slice(&symbols);
    let names_at = file.len();
    file.extend_from_slice(&names);
    let section_names = b"\0.text\0.eh_frame\0.symtab\0.strtab\0.shstrtab\0";
    let section_names_at = file.len();
    file.extend_from_slice(section_names);
    align(&mut file);
    let sections_at = file.len();
    // name, type, flags, address, offset, size, link, info, align, entry size
    let sections: [(u32, u32, u64, u64, usize, usize, u32, u32, u64, u64); 6] = [
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (1, 1, 6, TEXT, TEXT as usize, text.len(), 0, 0, 16, 0),
        (7, 1, 2, frames_at as u64, frames_at, frames.len(), 0, 0, 8, 0),
        (17, 2, 0, 0, symbols_at, symbols.len(), 4, 1, 8, 24),
        (25, 3, 0, 0, names_at, names.len(), 0, 0, 1, 0),
        (33, 3, 0, 0, section_names_at, section_names.len(), 0, 0, 1, 0),
    ];
    for (name, kind, flags, address, offset, size, link, info, alignment, entry) in sections {
        file.extend_from_slice(&name.to_le_bytes());
        file.extend_from_slice(&kind.to_le_bytes());
        for word in [flags, address, offset as u64, size as u64] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        file.extend_from_slice(&link.to_le_bytes());
        file.extend_from_slice(&info.to_le_bytes());
        file.extend_from_slice(&alignment.to_le_bytes());
        file.extend_from_slice(&entry.to_le_bytes());
    }
    let mut head = Vec::new();
    head.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    head.extend_from_slice(&[3, 0, 62, 0, 1, 0, 0, 0]); // a shared object for x86-64
    for word in [0, 64, sections_at as u64] {
        head.extend_from_slice(&word.to_le_bytes());
    }
    head.extend_from_slice(&[0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0, 6, 0, 5, 0]);
    // one segment: everything, readable and executable
    head.extend_from_slice(&[1, 0, 0, 0, 5, 0, 0, 0]);
    for word in [0, 0, 0, file.len() as u64, file.len() as u64, 0x1000] {
        head.extend_from_slice(&word.to_le_bytes());
    }
    file[..head.len()].copy_from_slice(&head);
    file
}

/// Splits fuzz input for [`image`] into a number of functions, their offsets, and text.
pub fn text_image(data: &[u8]) -> Option<AnalysedImage> {
    let (&count, rest) = data.split_first()?;
    let count = usize::from(count % 16) + 1;
    let (offsets, text) = rest.split_at_checked(count * 2)?;
    let length = u16::try_from(text.len().min(4096)).ok()?.max(1);
    let functions: Vec<u16> =
        offsets.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]) % length).collect();
    AnalysedImage::parse(Arc::from(image(&text[..text.len().min(4096)], &functions, &[]))).ok()
}

/// Code that was woven into an image, with everything that a proof needs.
pub struct Woven {
    /// Environment for which the code was made.
    pub environment: Environment,
    /// The arena after weaving.
    pub arena: Arena,
    /// The text space after weaving.
    pub text: TextSpace,
    /// Sites of the requests, in order.
    pub sites: Vec<Arc<Site>>,
    /// The plan and the points.
    pub weave: Weave,
}

/// Weaves counts, timers and calls of functions into every point.
pub fn weave(image: &AnalysedImage, sites: Vec<Arc<Site>>, identity: ThreadIdentity) -> Option<Woven> {
    let data = DataArea { base: Avma(0x1000_0000), stride: 1 << 20, shards: 64, journal_bytes: 1 << 20 };
    let ticks = Scale { mult: 1 << 31, shift: 32 };
    let environment = Environment {
        data,
        identity,
        shadow_stack: false,
        wall: WallClock::Tsc,
        ticks,
        cpu: CPU,
        vectors: VECTORS,
        readable: READABLE,
        loader: None,
        goroutine: None,
        stacks: false,
    };
    let mut arena = Arena::new(Avma(0x50_0000)..Avma(0x60_0000));
    let mut text = TextSpace::new();
    text.add_padding(Bias(0), image.padding());
    let weave = ask(&sites, identity, |requests| weave_points(&environment, &mut arena, &mut text, requests)).ok()?;
    Some(Woven { environment, arena, text, sites, weave })
}

/// Whether the verifier accepts a plan for the requests.
pub fn proven(woven: &Woven, weave: &Weave) -> bool {
    let environment = &woven.environment;
    let verify = |requests: &[PointRequest<'_>]| verify_weave(environment, &woven.arena, &woven.text, requests, weave);
    ask(&woven.sites, environment.identity, verify).is_ok()
}

/// A mapping with data of the program, and the process id.
const READABLE: Readable = Readable { start: Avma(0x5555_5555_4000), end: Avma(0x5555_5555_8000), process: Some(4711) };

/// Clock of processor time as with glibc.
const CPU: CpuClock = CpuClock::Rseq { slot: 0x928, signature: 0x5305_3053 };

/// Size and components of the vector state on a processor with AVX-512.
const VECTORS: Option<VectorState> = Some(VectorState { components: 0xe7, bytes: 2688 });

/// Makes the requests for these sites. Every third point counts. The others run a timer from entry to exit, and call a function if the
/// identity tells threads apart.
fn ask<R>(sites: &[Arc<Site>], identity: ThreadIdentity, answer: impl FnOnce(&[PointRequest<'_>]) -> R) -> R {
    let [activations, timer, histogram, table, vector, objects] = [0, 1, 2, 3, 4, 5].map(VariableId);
    let float = Float { register: 0, format: FloatFormat::Double };
    let arguments = [KeptValue::Argument(0), KeptValue::Argument(7), KeptValue::Float(float)];
    let record = CallRecord {
        activations,
        kept: [KeptValue::Time(Clock::Wall), KeptValue::Time(Clock::Cpu)].into_iter().chain(arguments).collect(),
        restore: Some(Restore::Timer(timer, Clock::Cpu)),
    };
    let count = Snippet::increment(VariableId(0));
    let open = Snippet { stmts: vec![Stmt::Prune, Stmt::Open(record.clone(), vec![Stmt::Start(timer, Clock::Cpu)])] };
    let read = Expr::Read(Box::new(Expr::Saved(arguments[0])), Scalar::INT);
    let load = Expr::Load(READABLE.start, Scalar::POINTER);
    let add = |a, b| Expr::Binary(BinaryOp::Add, Box::new(a), Box::new(b));
    let floats = add(Expr::Float(float), Expr::Saved(arguments[2]));
    let memory = add(add(read, load), add(floats, Expr::Usage(Usage::PageFaults)));
    let elapsed = [Clock::Wall, Clock::Cpu].map(|clock| Expr::Elapsed(clock, TimeUnit::Nanoseconds));
    let value = elapsed.into_iter().fold(memory, add);
    let observe = Stmt::Observe(histogram, Resolution::Fine, value.clone(), None);
    let key = Expr::Saved(arguments[1]);
    let ranges = Ranges::new(-8, 100, 7).expect("granules");
    let read = Expr::ValueAt(table, TableShape::SUMS.places, Box::new(key.clone()));
    let add_at = Stmt::AddAt(table, TableShape::SUMS, vec![KeyField::Number(key.clone())], add(value, read));
    let add_in = Stmt::AddIn(vector, ranges, key.clone(), Expr::ValueIn(vector, ranges, Box::new(Expr::Return)));
    let mark = Stmt::Mark(objects, key, ObjectState { kind: ObjectKind::Mutex, retired: true });
    let closing = vec![Stmt::Stop(timer, Clock::Cpu), observe, add_at, add_in, mark];
    let mut close = Snippet { stmts: vec![Stmt::Close(record, closing)] };
    if identity != ThreadIdentity::Locked {
        close.stmts.push(Stmt::Call(ProgramCall {
            callee: Called::At(Avma(0x1234_5678)),
            args: vec![Expr::Return, Expr::Text("text".into())],
        }));
        close.stmts.push(Stmt::Store(READABLE.start, IntegerWidth::Four, Expr::Return));
        close.stmts.push(Stmt::Write(Expr::Return, IntegerWidth::Two, Expr::Const(5)));
    }
    let shapes = [
        Shape::Activations,
        Shape::Timer(Clock::Cpu),
        Shape::Histogram(Resolution::Fine),
        Shape::Table(TableShape::SUMS),
        Shape::Vector(ranges.count()),
        Shape::Table(TableShape::OBJECTS),
    ];
    let mut next = 0;
    let counters = shapes.map(|shape| {
        let first = next;
        next += shape.slots();
        first
    });
    let minis: Vec<_> = sites
        .iter()
        .enumerate()
        .map(|(i, site)| {
            let follower = if site.point_kind() == PointKind::Entry { &open } else { &close };
            let snippet = if i % 3 == 0 { &count } else { follower };
            [MiniRequest { id: i as u64, snippet, counters: &counters }]
        })
        .collect();
    let requests: Vec<_> = sites
        .iter()
        .zip(&minis)
        .map(|(site, minis)| PointRequest { site, bias: Bias(0), name: "f", minis, beside: &[], probe: None })
        .collect();
    answer(&requests)
}
