//! zstd compression at the fastest level with one cached context per thread.
//!
//! Building a context takes longer than compressing an object of a kilobyte: zstd queries the
//! processor's features, which a hypervisor answers slowly.

use std::cell::Cell;
use std::io;

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{self, CCtx, CParameter, DCtx};

const LEVEL: i32 = 1;
/// The window of a patch, as a power of two: base and result have to fit, else the start of the
/// base is out of reach. zstd allows 10 at least; 24 covers a base and a result of 8 MiB.
const WINDOW_LOG: std::ops::RangeInclusive<u32> = 10..=24;
/// The largest hash table over the base, as a power of two of its entries of four bytes.
const MAX_HASH_LOG: u32 = 20;
/// The shortest match in bytes, the longest that zstd has. A shorter one lets the fast strategy
/// take a match nearby for the long one in the base.
const MIN_MATCH: u32 = 7;
/// The length of a base from which long matches have a table of their own.
const LONG_BASE: usize = 256 << 10;

thread_local! {
    static COMPRESSOR: Cell<Option<Compressor<'static>>> = const { Cell::new(None) };
    static DECOMPRESSOR: Cell<Option<Decompressor<'static>>> = const { Cell::new(None) };
}

/// Compresses into one frame whose header contains the decompressed size.
///
/// # Errors
/// Fails when memory is exhausted.
pub fn compress(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut compressor = COMPRESSOR.take().map_or_else(|| Compressor::new(LEVEL), Ok)?;
    let compressed = compressor.compress(bytes);
    COMPRESSOR.set(Some(compressor));
    compressed
}

/// Decompresses a frame of at most `limit` bytes, decompressed.
///
/// # Errors
/// Fails when the frame exceeds the limit or is damaged, or when memory is exhausted.
pub fn decompress(bytes: &[u8], limit: usize) -> io::Result<Vec<u8>> {
    let mut decompressor = DECOMPRESSOR.take().map_or_else(Decompressor::new, Ok)?;
    let decompressed = decompressor.decompress(bytes, limit);
    DECOMPRESSOR.set(Some(decompressor));
    decompressed
}

/// Compresses a text as the difference from a base. The strategy is the one of the fastest level,
/// the only one that is compiled in; the window and the tables are those that the lengths need.
///
/// # Errors
/// Fails when memory is exhausted.
pub(crate) fn compress_against(base: &[u8], bytes: &[u8]) -> io::Result<Vec<u8>> {
    let failed = |code| io::Error::other(zstd_safe::get_error_name(code));
    let mut context = CCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
    let reach = base.len().saturating_add(bytes.len()).max(1);
    let window_log = (reach.ilog2() + 1).clamp(*WINDOW_LOG.start(), *WINDOW_LOG.end());
    let parameters = [
        CParameter::CompressionLevel(LEVEL),
        CParameter::WindowLog(window_log),
        CParameter::HashLog(window_log.min(MAX_HASH_LOG)),
        CParameter::MinMatch(MIN_MATCH),
        CParameter::EnableLongDistanceMatching(base.len() >= LONG_BASE),
        // The receiver knows the length.
        CParameter::ContentSizeFlag(false),
        CParameter::ChecksumFlag(false),
    ];
    for parameter in parameters {
        context.set_parameter(parameter).map_err(failed)?;
    }
    context.ref_prefix(base).map_err(failed)?;
    let mut patch = Vec::with_capacity(zstd_safe::compress_bound(bytes.len()));
    context.compress2(&mut patch, bytes).map_err(failed)?;
    patch.shrink_to_fit();
    Ok(patch)
}

/// The failure to decompress a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotDecompressed {
    /// The result is longer or shorter than stated.
    OtherLength,
    /// The data is no difference from this base, or memory is exhausted.
    Damaged,
}

/// Decompresses a difference from a base into a text of exactly `length` bytes.
///
/// The result is decoded in one pass into a buffer of that length, so zstd allocates no window, and
/// stops as soon as the buffer is full.
pub(crate) fn decompress_against(
    base: &[u8],
    patch: &[u8],
    length: usize,
) -> Result<Vec<u8>, NotDecompressed> {
    /// The name of zstd's error for a full buffer.
    const FULL: &str = "Destination buffer is too small";
    let failed = |code| match zstd_safe::get_error_name(code) {
        FULL => NotDecompressed::OtherLength,
        _ => NotDecompressed::Damaged,
    };
    let mut context = DCtx::try_create().ok_or(NotDecompressed::Damaged)?;
    context.ref_prefix(base).map_err(failed)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| NotDecompressed::Damaged)?;
    context.decompress(&mut bytes, patch).map_err(failed)?;
    #[cfg(any(test, feature = "simulation"))]
    if super::fault::planted(super::fault::Fault::PatchUnbounded) {
        return Ok(bytes);
    }
    if bytes.len() == length { Ok(bytes) } else { Err(NotDecompressed::OtherLength) }
}

/// Frees the cached contexts of this thread.
pub fn release() {
    drop((COMPRESSOR.take(), DECOMPRESSOR.take()));
}

/// Returns the decompressed size that the frame's header claims.
#[must_use]
pub fn decompressed_size(bytes: &[u8]) -> Option<u64> {
    zstd::zstd_safe::get_frame_content_size(bytes).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compression_roundtrips_also_after_damaged_input() {
        let text = "station.parameter=0123456789\n".repeat(40);
        let compressed = compress(text.as_bytes()).unwrap();
        assert!(compressed.len() < 100, "{}", compressed.len());
        assert_eq!(decompressed_size(&compressed), Some(text.len() as u64));
        for cut in 1..compressed.len() {
            assert!(decompress(&compressed[..cut], text.len()).is_err(), "{cut}");
            assert_eq!(decompress(&compressed, text.len()).unwrap(), text.as_bytes());
        }
        assert!(decompress(&compressed, text.len() - 1).is_err());
        release();
        assert_eq!(compress(text.as_bytes()).unwrap(), compressed);
    }
}
