//! A SQLite VFS on top of the system's one that records every write, truncation and sync, and fails
//! on command. From its records, tests rebuild the disk as a power cut at any moment would leave
//! it.
//!
//! A VFS is a table of C functions, so this is unsafe code. SQLite calls them only with pointers
//! that it got from here, and follows its documented rules.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};

use rusqlite::ffi;

/// A recorded disk operation.
#[derive(Clone, Debug)]
pub enum Op {
    Write { file: String, offset: usize, data: Vec<u8> },
    Cut { file: String, length: usize },
    Sync { file: String },
    Delete { file: String },
}

/// The records of one VFS and its injected faults.
#[derive(Debug, Default)]
pub struct Disk {
    ops: Mutex<Vec<Op>>,
    /// Number of reads of each file.
    reads: Mutex<BTreeMap<&'static str, usize>>,
    held: Mutex<Option<Hold>>,
    /// The error code that writes, truncations and syncs return.
    failing: Mutex<Option<c_int>>,
}

/// A read of a file that blocks: it signals `reached` and waits for `release`.
#[derive(Debug)]
struct Hold {
    file: &'static str,
    reads: usize,
    reached: mpsc::Sender<()>,
    release: mpsc::Receiver<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Disk {
    pub fn position(&self) -> usize {
        lock(&self.ops).len()
    }

    pub fn ops(&self) -> Vec<Op> {
        lock(&self.ops).clone()
    }

    /// Returns the number of reads of a file.
    pub fn reads(&self, file: &str) -> usize {
        lock(&self.reads).get(file).copied().unwrap_or(0)
    }

    /// Blocks the read of a file with this number until the sender is used or dropped. The receiver
    /// signals that the read was reached.
    pub fn hold(&self, file: &'static str, reads: usize) -> (mpsc::Receiver<()>, mpsc::Sender<()>) {
        let ((reached, told), (done, release)) = (mpsc::channel(), mpsc::channel());
        *lock(&self.held) = Some(Hold { file, reads, reached, release });
        (told, done)
    }

    fn read_from(&self, name: &'static str) {
        let reads = {
            let mut reads = lock(&self.reads);
            let reads = reads.entry(name).or_default();
            *reads += 1;
            *reads
        };
        let hold = lock(&self.held).take_if(|hold| hold.file == name && hold.reads <= reads);
        if let Some(Hold { reached, release, .. }) = hold {
            let _ = reached.send(());
            let _ = release.recv();
        }
    }

    pub fn fail_with(&self, code: Option<c_int>) {
        *lock(&self.failing) = code;
    }

    /// Records an operation, or fails it with the injected error.
    fn note(&self, op: impl FnOnce() -> Op) -> Result<(), c_int> {
        if let Some(code) = *lock(&self.failing) {
            return Err(code);
        }
        lock(&self.ops).push(op());
        Ok(())
    }
}

/// A small random number generator; the seed reproduces a run.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

const SECTOR: usize = 512;

/// The content of a file: synced bytes and pending operations.
#[derive(Default)]
struct File {
    safe: Vec<u8>,
    pending: Vec<Op>,
}

fn write(content: &mut Vec<u8>, offset: usize, data: &[u8]) {
    if content.len() < offset + data.len() {
        content.resize(offset + data.len(), 0);
    }
    content[offset..offset + data.len()].copy_from_slice(data);
}

impl File {
    fn settle(&mut self) {
        for op in self.pending.drain(..) {
            match op {
                Op::Write { offset, data, .. } => write(&mut self.safe, offset, &data),
                Op::Cut { length, .. } => self.safe.resize(length, 0),
                _ => {}
            }
        }
    }

    /// Simulates a power cut: each sector of a pending write arrives or does not, independent of
    /// the others.
    fn lose_power(&mut self, random: &mut Random) {
        // Sometimes nothing arrives, sometimes nearly everything.
        let share = [0, 30, 70, 97][random.below(4) as usize];
        for op in std::mem::take(&mut self.pending) {
            match op {
                Op::Write { offset, data, .. } => {
                    let mut at = 0;
                    while at < data.len() {
                        let end = (((offset + at) / SECTOR + 1) * SECTOR - offset).min(data.len());
                        if random.below(100) < share {
                            write(&mut self.safe, offset + at, &data[at..end]);
                        }
                        at = end;
                    }
                }
                Op::Cut { length, .. } if random.below(100) < share => self.safe.resize(length, 0),
                _ => {}
            }
        }
    }
}

/// Returns the disk after a power cut that follows the first `position` operations. If `syncs` is
/// false, the disk ignores syncs.
pub fn after_power_cut(
    ops: &[Op],
    position: usize,
    syncs: bool,
    random: &mut Random,
) -> BTreeMap<String, Vec<u8>> {
    let mut files: BTreeMap<String, File> = BTreeMap::new();
    for op in &ops[..position] {
        match op {
            Op::Write { file, .. } | Op::Cut { file, .. } => {
                files.entry(file.clone()).or_default().pending.push(op.clone());
            }
            Op::Sync { file } if syncs => files.entry(file.clone()).or_default().settle(),
            Op::Sync { .. } => {}
            Op::Delete { file } => {
                files.remove(file);
            }
        }
    }
    let lose = |(name, mut file): (String, File)| {
        file.lose_power(random);
        (name, file.safe)
    };
    files.into_iter().map(lose).collect()
}

/// Writes an image into a directory.
pub fn write_image(directory: &Path, image: &BTreeMap<String, Vec<u8>>) {
    for (name, content) in image {
        std::fs::write(directory.join(name), content).unwrap();
    }
}

/// Registers a VFS of this name. The VFS and its disk are leaked: SQLite may use them until the
/// process ends.
pub fn register(name: &str) -> &'static Disk {
    let disk: &'static Disk = Box::leak(Box::default());
    let name = CString::new(name).unwrap().into_raw();
    // SAFETY: the default VFS is static, and ours is leaked. The functions below have the
    // signatures of the table.
    unsafe {
        let real = ffi::sqlite3_vfs_find(std::ptr::null());
        assert!(!real.is_null());
        let mut vfs: ffi::sqlite3_vfs = std::mem::zeroed();
        vfs.iVersion = 2;
        vfs.szOsFile = c_int::try_from(size_of::<Handle>()).unwrap() + (*real).szOsFile;
        vfs.mxPathname = (*real).mxPathname;
        vfs.zName = name;
        vfs.pAppData = std::ptr::from_ref(Box::leak(Box::new(App { disk, real }))).cast_mut().cast();
        vfs.xOpen = Some(open);
        vfs.xDelete = Some(delete);
        vfs.xAccess = Some(access);
        vfs.xFullPathname = Some(full_pathname);
        vfs.xRandomness = Some(randomness);
        vfs.xSleep = Some(sleep);
        vfs.xCurrentTimeInt64 = Some(current_time);
        let code = ffi::sqlite3_vfs_register(Box::leak(Box::new(vfs)), 0);
        assert_eq!(code, ffi::SQLITE_OK);
    }
    disk
}

struct App {
    disk: &'static Disk,
    real: *mut ffi::sqlite3_vfs,
}

/// An open file: SQLite allocates `szOsFile` bytes for it, which include those of the real file.
#[repr(C)]
struct Handle {
    base: ffi::sqlite3_file,
    disk: &'static Disk,
    /// The name without its directory; leaked, because there are few.
    name: &'static str,
}

unsafe fn app<'a>(vfs: *mut ffi::sqlite3_vfs) -> &'a App {
    // SAFETY: `register` stored a leaked `App` there.
    unsafe { &*(*vfs).pAppData.cast::<App>() }
}

unsafe fn real(file: *mut ffi::sqlite3_file) -> *mut ffi::sqlite3_file {
    // SAFETY: the bytes after the handle are part of the same allocation, see `szOsFile`.
    unsafe { file.cast::<Handle>().add(1).cast() }
}

fn base_name(path: &CStr) -> String {
    let path = path.to_string_lossy();
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

unsafe extern "C" fn open(
    vfs: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: SQLite passes a file of `szOsFile` bytes and a name that is null or ends with a zero.
    unsafe {
        let App { disk, real: real_vfs } = app(vfs);
        let text = if name.is_null() { String::new() } else { base_name(CStr::from_ptr(name)) };
        let handle = file.cast::<Handle>();
        (*handle).base.pMethods = std::ptr::null();
        (*handle).disk = disk;
        (*handle).name = Box::leak(text.into_boxed_str());
        let inner = real(file);
        (*inner).pMethods = std::ptr::null();
        let code = (**real_vfs).xOpen.unwrap()(*real_vfs, name, inner, flags, out);
        if !(*inner).pMethods.is_null() {
            (*handle).base.pMethods = &raw const METHODS;
        }
        code
    }
}

unsafe extern "C" fn delete(vfs: *mut ffi::sqlite3_vfs, name: *const c_char, sync: c_int) -> c_int {
    // SAFETY: as above.
    unsafe {
        let App { disk, real } = app(vfs);
        match disk.note(|| Op::Delete { file: base_name(CStr::from_ptr(name)) }) {
            Ok(()) => (**real).xDelete.unwrap()(*real, name, sync),
            Err(code) => code,
        }
    }
}

macro_rules! vfs_through {
    ($($name:ident = $field:ident($($argument:ident: $type:ty),*);)*) => {
        $(unsafe extern "C" fn $name(vfs: *mut ffi::sqlite3_vfs, $($argument: $type),*) -> c_int {
            // SAFETY: the arguments are passed on unchanged, with the VFS they belong to.
            unsafe {
                let real = app(vfs).real;
                (*real).$field.unwrap()(real, $($argument),*)
            }
        })*
    };
}
vfs_through! {
    access = xAccess(name: *const c_char, flags: c_int, out: *mut c_int);
    full_pathname = xFullPathname(name: *const c_char, length: c_int, out: *mut c_char);
    randomness = xRandomness(length: c_int, out: *mut c_char);
    sleep = xSleep(microseconds: c_int);
    current_time = xCurrentTimeInt64(out: *mut ffi::sqlite3_int64);
}

macro_rules! file_through {
    ($($name:ident = $field:ident($($argument:ident: $type:ty),*) $(-> $out:ty)?;)*) => {
        $(unsafe extern "C" fn $name(file: *mut ffi::sqlite3_file, $($argument: $type),*) -> c_int {
            // SAFETY: the arguments are passed on unchanged, with the file they belong to.
            unsafe {
                let real = real(file);
                (*(*real).pMethods).$field.unwrap()(real, $($argument),*)
            }
        })*
    };
}
file_through! {
    close = xClose();
    real_read = xRead(out: *mut c_void, length: c_int, offset: ffi::sqlite3_int64);
    file_size = xFileSize(out: *mut ffi::sqlite3_int64);
    lock_file = xLock(level: c_int);
    unlock_file = xUnlock(level: c_int);
    check_lock = xCheckReservedLock(out: *mut c_int);
    control = xFileControl(op: c_int, argument: *mut c_void);
    sector_size = xSectorSize();
    characteristics = xDeviceCharacteristics();
    shm_map = xShmMap(page: c_int, size: c_int, extend: c_int, out: *mut *mut c_void);
    shm_lock = xShmLock(offset: c_int, n: c_int, flags: c_int);
    shm_unmap = xShmUnmap(delete: c_int);
    real_write = xWrite(data: *const c_void, length: c_int, offset: ffi::sqlite3_int64);
    real_truncate = xTruncate(length: ffi::sqlite3_int64);
    real_sync = xSync(flags: c_int);
}

unsafe extern "C" fn shm_barrier(file: *mut ffi::sqlite3_file) {
    // SAFETY: as above.
    unsafe {
        let real = real(file);
        (*(*real).pMethods).xShmBarrier.unwrap()(real);
    }
}

unsafe fn noted(
    file: *mut ffi::sqlite3_file,
    op: impl FnOnce(String) -> Op,
    run: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: `open` made the file a `Handle`.
    let (disk, name) = unsafe { ((*file.cast::<Handle>()).disk, (*file.cast::<Handle>()).name) };
    match disk.note(|| op(name.to_owned())) {
        Ok(()) => run(),
        Err(code) => code,
    }
}

unsafe extern "C" fn read(
    file: *mut ffi::sqlite3_file,
    out: *mut c_void,
    length: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: `open` made the file a `Handle`; the arguments are passed on unchanged.
    unsafe {
        let Handle { disk, name, .. } = &*file.cast::<Handle>();
        disk.read_from(name);
        real_read(file, out, length, offset)
    }
}

unsafe extern "C" fn write_file(
    file: *mut ffi::sqlite3_file,
    data: *const c_void,
    length: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: SQLite passes `length` bytes of data.
    unsafe {
        let bytes = std::slice::from_raw_parts(data.cast::<u8>(), usize::try_from(length).unwrap());
        let at = usize::try_from(offset).unwrap();
        let op = |name| Op::Write { file: name, offset: at, data: bytes.to_vec() };
        noted(file, op, || real_write(file, data, length, offset))
    }
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, length: ffi::sqlite3_int64) -> c_int {
    let to = usize::try_from(length).unwrap();
    // SAFETY: as above.
    unsafe { noted(file, |name| Op::Cut { file: name, length: to }, || real_truncate(file, length)) }
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: as above. The sync is recorded before it runs: concurrent writes do not count as
    // synced.
    unsafe { noted(file, |name| Op::Sync { file: name }, || real_sync(file, flags)) }
}

/// Version 2: shared memory for the index of the log, no memory-mapped reads.
static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write_file),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock_file),
    xUnlock: Some(unlock_file),
    xCheckReservedLock: Some(check_lock),
    xFileControl: Some(control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};
