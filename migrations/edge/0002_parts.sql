-- The message that arrives in parts, as far as it is not in memory: a cache, of one message at a time.
-- start: the offset of the piece in the message. message: its JSON identity (UID, version, total, digest). piece: a byte of
-- encoding, and text. checksum: over all columns.
CREATE TABLE parts (
  start INTEGER PRIMARY KEY,
  length INTEGER NOT NULL,
  checksum INTEGER NOT NULL,
  message TEXT NOT NULL,
  piece BLOB NOT NULL
) STRICT;
