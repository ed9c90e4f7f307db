use super::*;
use edgesync_protocol::digest::MessageDigest;
use edgesync_store::seal::{KeySource, Keyring, SealOptions};

use crate::store::seals::Active;

fn database() -> Connection {
    let conn = Connection::open_in_memory().unwrap();
    conn.execute_batch(include_str!("../../../migrations/edge/0001_schema.sql")).unwrap();
    conn
}

fn message(received: usize) -> PartialMessage {
    PartialMessage {
        uid: "u-1".into(),
        resource_version: 7.into(),
        total: 100,
        digest: MessageDigest(5),
        received: received as u64,
    }
}

fn plain() -> Seals {
    Seals::default()
}

/// Keeps the pieces one after the other.
fn keep_all(conn: &Connection, seals: &Seals, pieces: &[&str]) {
    let mut start = 0;
    for piece in pieces {
        assert!(keep(conn, seals, &message(start), piece).unwrap());
        start += piece.len();
    }
}

fn kept(conn: &Connection, seals: &Seals) -> (Option<u64>, String) {
    let mut text = String::new();
    let found = scan(conn, seals, |piece| text.push_str(piece)).unwrap();
    (found.map(|message| message.received), text)
}

#[test]
fn pieces_make_the_start_of_the_message() {
    let conn = database();
    assert_eq!(kept(&conn, &plain()), (None, String::new()));
    keep_all(&conn, &plain(), &["abc", "de\u{e4}", "f"]);
    assert_eq!(kept(&conn, &plain()), (Some(8), "abcde\u{e4}f".into()));
    assert_eq!(whole(&conn, &plain(), &message(8), "gh").unwrap().as_deref(), Some("abcde\u{e4}fgh"));
    assert_eq!(whole(&conn, &plain(), &message(7), "gh").unwrap(), None);
    let other = PartialMessage { digest: MessageDigest(6), ..message(8) };
    assert_eq!(whole(&conn, &plain(), &other, "gh").unwrap(), None);
    assert!(clear(&conn).unwrap() && !clear(&conn).unwrap());
    assert_eq!(whole(&conn, &plain(), &message(8), "gh").unwrap(), None);
}

#[test]
fn a_piece_without_those_before_it_is_not_kept() {
    let conn = database();
    assert!(!keep(&conn, &plain(), &message(3), "def").unwrap());
    keep_all(&conn, &plain(), &["abc"]);
    assert!(!keep(&conn, &plain(), &message(4), "ef").unwrap(), "a gap");
    let other = PartialMessage { resource_version: 8.into(), ..message(3) };
    assert!(!keep(&conn, &plain(), &other, "def").unwrap(), "another message");
    assert_eq!(kept(&conn, &plain()), (Some(3), "abc".into()));
    assert!(keep(&conn, &plain(), &PartialMessage { received: 0, ..other }, "xyz").unwrap());
    assert_eq!(kept(&conn, &plain()), (Some(3), "xyz".into()), "it replaces the old one");
}

#[test]
fn damage_ends_what_is_kept() {
    let damages = [
        "UPDATE parts SET piece = zeroblob(4) WHERE start = 3",
        "UPDATE parts SET length = 2 WHERE start = 3",
        "UPDATE parts SET message = replace(message, '100', '101') WHERE start = 3",
        "UPDATE parts SET checksum = checksum + 1 WHERE start = 3",
        "DELETE FROM parts WHERE start = 3",
    ];
    for damage in damages {
        let conn = database();
        keep_all(&conn, &plain(), &["abc", "def", "ghi"]);
        assert_eq!(conn.execute(damage, []).unwrap(), 1, "{damage}");
        assert_eq!(kept(&conn, &plain()), (Some(3), "abc".into()), "{damage}");
        assert_eq!(whole(&conn, &plain(), &message(9), "j").unwrap(), None, "{damage}");
        assert!(keep(&conn, &plain(), &message(3), "DEF").unwrap(), "it goes on there: {damage}");
        assert_eq!(kept(&conn, &plain()), (Some(6), "abcDEF".into()), "{damage}");
    }
}

#[test]
fn pieces_are_sealed_and_void_without_their_key() {
    let dir = tempfile::tempdir().unwrap();
    let seals = |file: &str| {
        let keys = KeySource { file: dir.path().join(file), ..KeySource::default() };
        let options = SealOptions { kinds: Vec::new(), keys };
        let keys = Keyring::open(&options.keys).unwrap().0;
        Seals(Some(std::sync::Arc::new(Active { options, keys })))
    };
    let (own, other) = (seals("a.key"), seals("b.key"));
    let conn = database();
    keep_all(&conn, &own, &["password=", "hunter2"]);
    let pieces: Vec<u8> =
        conn.query_row("SELECT piece FROM parts WHERE start = 9", [], |row| row.get(0)).unwrap();
    assert!(!pieces.windows(7).any(|bytes| bytes == b"hunter2"));
    assert_eq!(kept(&conn, &own), (Some(16), "password=hunter2".into()));
    assert_eq!(kept(&conn, &other), (None, String::new()));
    // A piece moved to another row opens nowhere.
    let moved =
        "UPDATE parts SET piece = (SELECT piece FROM parts WHERE start = 0), length = 9, checksum = ?1
                 WHERE start = 9";
    let (identity, piece): (String, Vec<u8>) = conn
        .query_row("SELECT message, piece FROM parts WHERE start = 0", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .unwrap();
    conn.execute(moved, [checksum(9, 9, &identity, &piece)]).unwrap();
    assert_eq!(kept(&conn, &own), (Some(9), "password=".into()));

    let conn = database();
    keep_all(&conn, &plain(), &["password=", "hunter2"]);
    assert_eq!(kept(&conn, &own), (None, String::new()), "plain text is not used");
    drop_unsealed(&conn, &own).unwrap();
    assert!(!clear(&conn).unwrap(), "and not left");
    keep_all(&conn, &own, &["password="]);
    drop_unsealed(&conn, &own).unwrap();
    assert_eq!(kept(&conn, &own).0, Some(9));
}

#[test]
fn pieces_are_compressed() {
    let conn = database();
    let text = "speed=0123456789,".repeat(5000);
    keep_all(&conn, &plain(), &[&text]);
    let bytes: i64 = conn.query_row("SELECT length(piece) FROM parts", [], |row| row.get(0)).unwrap();
    assert!(bytes * 20 < integer(text.len() as u64), "{bytes}");
}
