//! Images of files: read through the process that maps them, analysed once for all targets, and cached on disk.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ingraft_analysis::{AnalysedImage, Elf};
use ingraft_model::{Avma, Pid};
use ingraft_process::{MappedFile, Target};
use rustc_hash::FxHashMap;

use crate::background::in_background;
use crate::error::{Error, Reason};
use crate::state_dir::StateDir;
use crate::undertaking;

/// Version of the cache, which changes whenever the form or meaning of the analysis results changes.
const CACHE_VERSION: u32 = 1;

/// The analyses that sessions use, and those on disk.
#[derive(Debug)]
pub struct ImageStore {
    state: StateDir,
    loaded: Mutex<FxHashMap<String, Weak<AnalysedImage>>>,
    /// Locks for the analysis of a file, so that requests for several processes of one program analyse it once. Each file has one of them.
    analysing: [Mutex<()>; ANALYSES],
}

/// Number of locks for analyses.
const ANALYSES: usize = 64;

/// An image, and its source.
pub struct LoadedImage {
    /// The image.
    pub image: Arc<AnalysedImage>,
    /// Whether the image was read from memory, without sections, because its file could not be opened.
    pub from_memory: bool,
}

impl ImageStore {
    /// A store that caches analyses in a state directory.
    pub fn new(state: StateDir) -> Self {
        ImageStore { state, loaded: Mutex::default(), analysing: [const { Mutex::new(()) }; ANALYSES] }
    }

    /// The image of a mapped file.
    pub fn load(&self, target: &Target, file: &MappedFile) -> Result<LoadedImage, Error> {
        let (bytes, from_memory) = bytes_of(target, file)?;
        let key = cache_key(&bytes);
        if let Some(image) = self.lock().get(&key).and_then(Weak::upgrade) {
            return Ok(LoadedImage { image, from_memory });
        }
        let lock = self.analysing.get(crc32fast::hash(key.as_bytes()) as usize % ANALYSES);
        let _analysing = lock.map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner));
        // Another request may have analysed the file meanwhile.
        if let Some(image) = self.lock().get(&key).and_then(Weak::upgrade) {
            return Ok(LoadedImage { image, from_memory });
        }
        let image = Arc::new(self.analyse(target, file, bytes, &key)?);
        let mut loaded = self.lock();
        loaded.retain(|_, image| image.strong_count() > 0);
        loaded.insert(key, Arc::downgrade(&image));
        Ok(LoadedImage { image, from_memory })
    }

    fn analyse(&self, target: &Target, file: &MappedFile, bytes: Arc<[u8]>, key: &str) -> Result<AnalysedImage, Error> {
        let refused = |e: ingraft_analysis::ImageError| {
            Error::new(
                Reason::BadImage,
                format!("{} cannot be analysed: {e}", file.path.display()),
                "only whole ELF files for x86-64 are understood; name another module",
            )
        };
        let elf = Elf::parse(bytes).map_err(refused)?;
        let cached = self.state.read_cache(key).and_then(|cache| {
            let (sum, cache) = cache.split_at_checked(4)?;
            (sum == crc32fast::hash(cache).to_le_bytes()).then(|| AnalysedImage::from_cache(elf.clone(), cache))?
        });
        if let Some(image) = cached {
            return Ok(image);
        }
        let debug = debug_elf(target.pid(), file, &elf);
        let name = file.path.file_name().unwrap_or_default().to_string_lossy();
        undertaking::begin_step(|| format!("analysing {name}"), elf.text_bytes());
        let done = undertaking::done();
        let image = in_background(|| AnalysedImage::from_elf_counting(elf, debug.as_ref(), &done));
        let cache = image.to_cache();
        let mut out = crc32fast::hash(&cache).to_le_bytes().to_vec();
        out.extend(cache);
        if let Err(error) = self.state.write_cache(key, &out) {
            tracing::debug!(%error, "the analysis was not cached");
        }
        Ok(image)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, FxHashMap<String, Weak<AnalysedImage>>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes of a mapped file, and whether they had to be read from the memory of the process.
pub fn bytes_of(target: &Target, file: &MappedFile) -> Result<(Arc<[u8]>, bool), Error> {
    let mapping = file.mappings.iter().find(|m| m.exec).or(file.mappings.first());
    let bytes = mapping.and_then(|mapping| target.read_file_of(mapping).ok());
    Ok(match bytes {
        Some((bytes, _)) => (bytes, false),
        None => (read_from_memory(target, file)?.into(), true),
    })
}

/// Name of the analysis of exactly these bytes. The build id does not suffice, because stripped and unstripped files share one.
fn cache_key(bytes: &[u8]) -> String {
    format!("{CACHE_VERSION}-{:08x}-{:x}", crc32fast::hash(bytes), bytes.len())
}

/// The outline of the separate debug file, from the place where distributions put it (gdb's manual, "Debugging Information in Separate
/// Files"). `None` if the debug file cannot be read, or makes no sense.
pub fn debug_elf(pid: Pid, file: &MappedFile, elf: &Elf) -> Option<Elf> {
    let read = |path: &Path| match ingraft_process::read_named(pid, path) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            tracing::debug!(%error, "no debug file");
            None
        }
    };
    if let Some(id) = elf.build_id().filter(|id| id.len() > 1) {
        let hex: String = id[1..].iter().map(|b| format!("{b:02x}")).collect();
        let path = format!("/usr/lib/debug/.build-id/{:02x}/{hex}.debug", id[0]);
        // the target controls the file name, which may therefore lead to another program's file
        let found = read(Path::new(&path)).and_then(|bytes| Elf::parse_debug(bytes).ok());
        if let Some(found) = found.filter(|found| found.build_id() == Some(id)) {
            return Some(found);
        }
    }
    let (name, sum) = elf.debuglink()?;
    // A name with a slash would lead out of the folders that debuggers use.
    if name.contains('/') {
        return None;
    }
    let folder = file.path.parent()?;
    let global = Path::new("/usr/lib/debug").join(folder.strip_prefix("/").unwrap_or(folder));
    [folder.join(".debug"), folder.to_owned(), global]
        .iter()
        .filter_map(|folder| read(&folder.join(&name)))
        .find(|bytes| crc32fast::hash(bytes) == sum)
        .and_then(|bytes| Elf::parse_debug(bytes).ok())
}

/// Reconstructs the file from the segments that the loader mapped, at their file offsets and without sections.
fn read_from_memory(target: &Target, file: &MappedFile) -> Result<Vec<u8>, Error> {
    /// Largest size of the reconstructed file. No real segment list needs more; a hostile one must not cause a larger allocation.
    const MOST: u64 = 1 << 30;
    let unreadable = || {
        Error::new(
            Reason::UnreadableImage,
            format!("neither the file {} nor its memory can be read", file.path.display()),
            "run as the owner of the process, or as root",
        )
    };
    let end = file.mappings.iter().map(|m| m.offset.saturating_add(m.len())).max().unwrap_or(0);
    if end == 0 || end > MOST {
        return Err(unreadable());
    }
    // a mapping that is no program is not worth the memory: code that is generated at run time lies in files of many GiB
    let mut magic = [0; 4];
    let is_elf = target.read(file.base, &mut magic).is_ok() && magic == *b"\x7fELF";
    if !is_elf {
        let what = format!("{} cannot be analysed: it is no ELF file", file.path.display());
        let hint = "only whole ELF files for x86-64 are understood; name another module";
        return Err(Error::new(Reason::BadImage, what, hint));
    }
    let mut bytes = vec![0; usize::try_from(end).map_err(|_| unreadable())?];
    for mapping in &file.mappings {
        let start = usize::try_from(mapping.offset).map_err(|_| unreadable())?;
        let len = usize::try_from(mapping.len()).map_err(|_| unreadable())?;
        if let Some(part) = bytes.get_mut(start..start + len) {
            // Bytes that cannot be read stay zero. If code is missing, the comparison with memory refuses it.
            let _ = target.read_some(Avma(mapping.range.start.0), part);
        }
    }
    // Clears e_shoff, e_shnum and e_shstrndx, because sections are not mapped.
    if let Some(header) = bytes.get_mut(..64) {
        header[40..48].fill(0);
        header[60..64].fill(0);
    }
    Ok(bytes)
}
