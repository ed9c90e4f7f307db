//! Checks that the keys of sealed Secrets exist.

use std::fs;
use std::io::ErrorKind;

use super::{Check, CheckFn, DEFAULT_TIMEOUT, Examined, Finding};
use edgesync_store::seal::keys_in;

pub(super) const CHECK: Check = Check {
    id: "seal-key",
    title: "Seal key",
    needs: &["configuration"],
    limit: DEFAULT_TIMEOUT,
    examine: CheckFn::Files(examine),
};

/// Maximum bytes of the file with the keys.
const MAX_FILE_BYTES: u64 = 1 << 20;

fn examine(examined: &mut Examined) -> Finding {
    let path = examined.config().seal.key_file;
    let shown = path.display();
    let bodies: u64 = examined.sealed.iter().flat_map(|keys| keys.values()).sum();
    let again = "start the agent, which creates a new key; the cloud resends the Secrets";
    match fs::metadata(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound && bodies > 0 => Finding::failed(
            format!("{shown} does not exist, and {bodies} objects are sealed with its keys"),
            again,
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Finding::skipped(format!("{shown} does not exist yet; the agent creates it when it starts"))
        }
        Err(error) => Finding::failed(format!("stat {shown}: {error}"), "run the check as root"),
        Ok(metadata) if !metadata.is_file() || metadata.len() > MAX_FILE_BYTES => {
            Finding::failed(format!("{shown} is not a key file"), "set seal.key_file to another file")
        }
        Ok(_) => match fs::read_to_string(&path) {
            Ok(text) => check_keys(&shown.to_string(), &text, examined, again),
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                Finding::failed(format!("{shown} is damaged: not a text"), again)
            }
            Err(error) => Finding::failed(format!("read {shown}: {error}"), "run the check as root"),
        },
    }
}

/// Checks that the file has the key of each sealed body.
fn check_keys(shown: &str, text: &str, examined: &Examined, again: &str) -> Finding {
    let Some(keys) = keys_in(text) else {
        return Finding::failed(format!("{shown} is damaged: checksum mismatch"), again);
    };
    let sealed = examined.sealed.clone().unwrap_or_default();
    let lost: u64 = sealed
        .iter()
        .filter(|(key, _)| keys.iter().all(|(there, _)| there != *key))
        .map(|(_, bodies)| bodies)
        .sum();
    if lost > 0 {
        let message = format!("{lost} objects are sealed with keys that are not in {shown}");
        return Finding::failed(message, format!("put the right key file back, or {again}"));
    }
    let credential = match keys.iter().any(|(_, wrapped)| *wrapped) {
        true if std::env::var_os("CREDENTIALS_DIRECTORY").is_none() => {
            ", wrapped with a credential of the unit"
        }
        true => ", wrapped with a credential",
        false => "",
    };
    let bodies: u64 = sealed.values().sum();
    match keys.len() {
        1 => Finding::ok(format!("1 key in {shown}{credential}; {bodies} sealed objects match")),
        keys => Finding::warning(
            format!("{keys} keys in {shown}{credential}: a rotation is not complete"),
            "run 'edgesync seal rotate' with the agent running",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{Testbed, failed, ok, warned};
    use edgesync_transport::tls::certificate::sha256_hex;

    fn file(keys: &[&str]) -> String {
        let lines = keys.iter().map(|key| format!("key {key} 2026-11-21T13:40:00Z plain c2VjcmV0\n"));
        let body = format!("edgesync-seal 1\n{}", lines.collect::<String>());
        format!("{body}sum {}\n", sha256_hex(body.as_bytes()))
    }

    #[test]
    fn sealed_objects_need_their_key_and_the_key_is_never_shown() {
        let testbed = Testbed::new("");
        let mut examined = testbed.examined();
        let path = examined.config().seal.key_file;
        assert!(matches!(examine(&mut examined), Finding::Skipped(_)));
        examined.sealed = Some([(17, 3)].into());
        failed(examine(&mut examined), "does not exist, and 3 objects", "start the agent");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, file(&["17"])).unwrap();
        ok(examine(&mut examined), "3 sealed objects match");
        fs::write(&path, file(&["18"])).unwrap();
        failed(
            examine(&mut examined),
            "3 objects are sealed with keys that are not in",
            "put the right key file back",
        );
        fs::write(&path, file(&["17", "18"])).unwrap();
        warned(examine(&mut examined), "a rotation is not complete", "seal rotate");
        let damaged = file(&["17"]).replace("c2Vj", "c2Vk");
        fs::write(&path, &damaged).unwrap();
        let finding = examine(&mut examined);
        assert!(!format!("{finding:?}").contains("c2V"), "{finding:?}");
        failed(finding, "damaged", "start the agent");
    }
}
