//! zstd compression at the fastest level with one cached context per thread.
//!
//! Building a context takes longer than compressing an object of a kilobyte: zstd queries the
//! processor's features, which a hypervisor answers slowly.

use std::cell::Cell;
use std::io;

use zstd::bulk::{Compressor, Decompressor};

const LEVEL: i32 = 1;

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
