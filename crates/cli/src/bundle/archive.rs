//! A tar archive (POSIX ustar) of regular files in memory. Pure.

/// Block size of tar, in bytes.
const BLOCK: usize = 512;
/// The longest name in a header, in bytes.
const LONGEST_NAME: usize = 100;

/// Encodes files as a tar archive, readable by their owner only.
pub(super) fn tar<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>, seconds: i64) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, content) in files {
        out.extend(header(name, content.len(), seconds));
        out.extend(content);
        out.resize(out.len().next_multiple_of(BLOCK), 0);
    }
    // Two empty blocks mark the end.
    out.resize(out.len() + 2 * BLOCK, 0);
    out
}

fn header(name: &str, length: usize, seconds: i64) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &str| {
        for (target, byte) in header.iter_mut().skip(at).zip(text.bytes()) {
            *target = byte;
        }
    };
    put(0, &name[..name.floor_char_boundary(LONGEST_NAME)]);
    put(100, "0000600\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{length:011o}\0"));
    put(136, &format!("{:011o}\0", seconds.max(0)));
    // The checksum is computed with its own field as eight spaces.
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    for (target, byte) in header.iter_mut().skip(148).zip(format!("{sum:06o}\0 ").bytes()) {
        *target = byte;
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn system_tar_reads_the_archive() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.tar");
        let long = vec![b'x'; 1300];
        let files: [(&str, &[u8]); 3] = [("a/one.txt", b"hello"), ("a/empty", b""), ("a/long", &long)];
        std::fs::write(&path, tar(files, 1_700_000_000)).unwrap();
        let output = Command::new("tar").arg("-xvf").arg(&path).arg("-C").arg(dir.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
        for (name, content) in files {
            assert_eq!(std::fs::read(dir.path().join(name)).unwrap(), content, "{name}");
        }
    }
}
