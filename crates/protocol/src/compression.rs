//! zstd at its fastest level. Each thread keeps what it works with: to make it anew for an object of a kilobyte takes
//! longer than to compress it, because zstd then asks the processor what it can do, which a hypervisor answers slowly.

use std::cell::Cell;
use std::io;

use zstd::bulk::{Compressor, Decompressor};

const LEVEL: i32 = 1;

thread_local! {
    static COMPRESSOR: Cell<Option<Compressor<'static>>> = const { Cell::new(None) };
    static DECOMPRESSOR: Cell<Option<Decompressor<'static>>> = const { Cell::new(None) };
}

/// Compresses into one frame, which says its size.
///
/// # Errors
/// There is no memory.
pub fn compress(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut compressor = COMPRESSOR.take().map_or_else(|| Compressor::new(LEVEL), Ok)?;
    let compressed = compressor.compress(bytes);
    COMPRESSOR.set(Some(compressor));
    compressed
}

/// Decompresses a frame that comes to at most `limit` bytes.
///
/// # Errors
/// It comes to more, is damaged, or there is no memory.
pub fn decompress(bytes: &[u8], limit: usize) -> io::Result<Vec<u8>> {
    let mut decompressor = DECOMPRESSOR.take().map_or_else(Decompressor::new, Ok)?;
    let decompressed = decompressor.decompress(bytes, limit);
    DECOMPRESSOR.set(Some(decompressor));
    decompressed
}

/// Gives back what this thread keeps.
pub fn release() {
    drop((COMPRESSOR.take(), DECOMPRESSOR.take()));
}

/// The size that a frame says it comes to.
#[must_use]
pub fn decompressed_size(bytes: &[u8]) -> Option<u64> {
    zstd::zstd_safe::get_frame_content_size(bytes).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_compressed_comes_back_also_after_something_damaged() {
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
